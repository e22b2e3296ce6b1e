package node

import (
	"errors"
	"fmt"
	"testing"

	"github.com/carillon-scheduler/carillon/node/control"
)

// That the control plane is away hides nothing else that goes wrong at the same time.
func TestWhatIsToldOfPlacement(t *testing.T) {
	broken, away := errors.New("disk"), fmt.Errorf("list stores: %w", control.ErrUnavailable)
	for _, c := range []struct {
		errs []error
		want error
	}{
		{[]error{nil, nil}, nil},
		{[]error{away, nil, away}, nil},
		{[]error{away, broken, away}, broken},
	} {
		if got := besidesUnavailable(c.errs); !errors.Is(got, c.want) || errors.Is(got, control.ErrUnavailable) {
			t.Errorf("told %v, want %v", got, c.want)
		}
	}
}
