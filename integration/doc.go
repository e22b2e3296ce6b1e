// Package integration holds the tests that need real processes or look at the whole tree: crash drills, cases by their id,
// house rules. It exports nothing.
package integration
