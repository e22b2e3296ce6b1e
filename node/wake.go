package node

// wake rouses a goroutine that waits for it: a token, left once however often it is poked.
type wake chan struct{}

func newWake() wake { return make(wake, 1) }

// poke never blocks.
func (w wake) poke() {
	select {
	case w <- struct{}{}:
	default:
	}
}
