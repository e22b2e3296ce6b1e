package cron

import (
	"archive/zip"
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"
)

//go:generate go run gen.go

// The zones are those of the archive beside this file. time.LoadLocation is not used, because it prefers the machine's
// own files, and neither is time/tzdata, which it asks last.
var (
	//go:embed zoneinfo.zip
	zoneArchive []byte
	//go:embed zoneinfo.version
	zoneVersion string
)

// ZoneVersion is the version of the IANA data that is built in, like 2025c.
func ZoneVersion() string {
	version, _, _ := strings.Cut(zoneVersion, " ")
	return version
}

// Zone is a named time zone: its offsets from UTC over the years of this package.
type Zone struct {
	name     string
	segments []segment
}

// segment is a time without change of offset: [start, end) in seconds since 1970 UTC.
//
// All of this package relies on what TestZoneData checks of the data: neighbours have different offsets, and a segment
// is longer than the clock jumps at both its ends together. So a civil time has at most two instants, and what one
// transition takes or doubles the next one does not touch.
type segment struct {
	start, end int64
	offset     int64
}

func (s *segment) civilStart() Civil { return Civil(s.start + s.offset) }
func (s *segment) civilEnd() Civil   { return Civil(s.end + s.offset) }

var (
	zoneFiles = sync.OnceValue(openZones)
	// zones caches decoded zones by name; the archive's names bound it.
	zones sync.Map
)

func openZones() map[string]*zip.File {
	archive, err := zip.NewReader(bytes.NewReader(zoneArchive), int64(len(zoneArchive)))
	if err != nil {
		panic(fmt.Sprintf("cron: embedded zone archive: %v", err))
	}
	files := make(map[string]*zip.File, len(archive.File))
	for _, f := range archive.File {
		if !strings.HasSuffix(f.Name, "/") {
			files[f.Name] = f
		}
	}
	return files
}

// ZoneNames lists the names that LoadZone takes, aliases included, in order.
func ZoneNames() []string { return slices.Sorted(maps.Keys(zoneFiles())) }

// LoadZone returns the zone of a name of the IANA database, like Europe/Berlin, UTC or the old alias Europe/Kiev.
func LoadZone(name string) (*Zone, error) {
	if z, ok := zones.Load(name); ok {
		return z.(*Zone), nil
	}
	f, ok := zoneFiles()[name]
	if !ok {
		return nil, unknownZone(name)
	}
	r, err := f.Open()
	if err != nil {
		return nil, fmt.Errorf("open zone %s: %w", name, err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read zone %s: %w", name, err)
	}
	location, err := time.LoadLocationFromTZData(name, data)
	if err != nil {
		return nil, fmt.Errorf("decode zone %s: %w", name, err)
	}
	z, _ := zones.LoadOrStore(name, newZone(name, location))
	return z.(*Zone), nil
}

func unknownZone(name string) error {
	const maxShown = 64
	if len(name) > maxShown {
		name = name[:maxShown]
	}
	for known := range zoneFiles() {
		if strings.EqualFold(known, name) {
			return fmt.Errorf("zone %q is unknown; it is written %s", name, known)
		}
	}
	return fmt.Errorf("zone %q is unknown to the IANA data %s; allowed are names like Europe/Berlin, and UTC", name, ZoneVersion())
}

// newZone lists a location's segments from before the first local year to after the last.
func newZone(name string, location *time.Location) *Zone {
	z := &Zone{name: name}
	at := time.Date(FirstYear, 1, 1, 0, 0, 0, 0, time.UTC).AddDate(0, 0, -2).In(location)
	last := time.Date(LastYear+1, 1, 3, 0, 0, 0, 0, time.UTC)
	for {
		_, offset := at.Zone()
		_, end := at.ZoneBounds()
		switch {
		case end.IsZero() || end.After(last):
			end = last
		case !end.After(at):
			// golang.org/issue/81583: on the last day of a leap year the end may lie in the past.
			end = at.Add(time.Hour)
		}
		next := segment{at.Unix(), end.Unix(), int64(offset)}
		// What changes only the abbreviation, or nothing, is no transition here.
		if n := len(z.segments); n > 0 && z.segments[n-1].offset == next.offset {
			z.segments[n-1].end = next.end
		} else {
			z.segments = append(z.segments, next)
		}
		if !end.Before(last) {
			return z
		}
		at = end
	}
}

// Name is the name the zone was loaded by.
func (z *Zone) Name() string { return z.name }

// Local is what clocks in the zone show at an instant, and their offset from UTC. Instants beyond the years of this
// package have the offset of the nearest year.
func (z *Zone) Local(at time.Time) (local Civil, offsetSeconds int) {
	offset := z.segments[z.at(at.Unix())].offset
	return Civil(at.Unix() + offset), int(offset)
}

// Instants are the first and the last instant at which clocks in the zone show a civil time: two if they show it twice, else
// one. What they leave out is the first instant after the gap.
func (z *Zone) Instants(c Civil) (first, last time.Time) {
	i, ok := z.reaching(c, 0)
	if !ok {
		i = len(z.segments) - 1
	}
	seg := &z.segments[i]
	at := max(int64(c)-seg.offset, seg.start)
	first, last = time.Unix(at, 0).UTC(), time.Unix(at, 0).UTC()
	if i+1 < len(z.segments) && z.segments[i+1].civilStart() <= c {
		last = time.Unix(int64(c)-z.segments[i+1].offset, 0).UTC()
	}
	return first, last
}

// at is the segment of an instant.
func (z *Zone) at(second int64) int {
	i := sort.Search(len(z.segments), func(i int) bool { return z.segments[i].end > second })
	return min(i, len(z.segments)-1)
}

// reaching is the first segment from i on in which clocks have not passed c when it begins; ok is false if there is none.
func (z *Zone) reaching(c Civil, i int) (j int, ok bool) {
	j = i + sort.Search(len(z.segments)-i, func(k int) bool { return z.segments[i+k].civilEnd() > c })
	return j, j < len(z.segments)
}
