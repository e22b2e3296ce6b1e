package cron_test

import (
	"fmt"
	"time"

	"github.com/carillon-scheduler/carillon/cron"
)

// In New York 2:00 to 3:00 is missing on 2026-03-08.
func Example() {
	schedule, err := cron.Compile(cron.Spec{
		Lines:   []string{"30 2 * * *"},
		Zone:    "America/New_York",
		Exclude: cron.Exclusions{Dates: []string{"2026-03-10"}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	n := 0
	for e := range schedule.Walk(time.Date(2026, 3, 7, 12, 0, 0, 0, time.UTC)) {
		fmt.Println(e.At.Format(time.RFC3339), e.Local, e.Verdict, e.Rule)
		if n++; n == 4 {
			break
		}
	}
	// Output:
	// 2026-03-08T07:00:00Z 2026-03-08 03:00:00 fires shifted
	// 2026-03-09T06:30:00Z 2026-03-09 02:30:00 fires as named
	// 2026-03-10T06:30:00Z 2026-03-10 02:30:00 excluded as named
	// 2026-03-11T06:30:00Z 2026-03-11 02:30:00 fires as named
}

func ExampleParse() {
	_, err := cron.Parse("0 0 31 2 *")
	fmt.Println(err)
	_, err = cron.Parse("0 25 * * *")
	fmt.Println(err)
	pattern, _ := cron.Parse("0,15,30,45 9-17 ? * mon-fri")
	fmt.Println(pattern)
	// Output:
	// cron pattern "0 0 31 2 *": it never fires: no month that it names has such a day in any year
	// cron pattern "0 25 * * *", column 3, hour: "25" is not allowed; allowed are 0 to 23
	// */15 9-17 * * 1-5
}
