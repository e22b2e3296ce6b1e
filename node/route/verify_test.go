package route

import "testing"

// What a replica found is asked of its store's node, and of no other one that is at its address.
func TestFindingsAreAskedFor(t *testing.T) {
	c := newCluster(t, "a", "b")
	found, err := c.nodes["a"].router.Verification(t.Context(), "b", 3, "v1")
	if err != nil || found.Digest != 3 || found.Reason != "v1" {
		t.Errorf("%v %v", found, err)
	}
	if _, err := c.nodes["a"].router.Verification(t.Context(), "nobody", 3, "v1"); err == nil {
		t.Error("a store that is not known answers")
	}
}
