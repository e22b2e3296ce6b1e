package store_test

import (
	"testing"

	"github.com/carillon-scheduler/carillon/store"
	"pgregory.net/rapid"
)

// forEachEngine runs a test over both implementations.
func forEachEngine(t *testing.T, test func(t *testing.T, open func(rapid.TB) store.Engine)) {
	t.Run("memory", func(t *testing.T) {
		test(t, func(rapid.TB) store.Engine { return store.OpenMemory() })
	})
}
