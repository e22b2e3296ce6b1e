package store

import "bytes"

// node is a treap of rows that never changes: each write returns a new root that shares what it left alone. A root is
// therefore a snapshot, for nothing. Priorities are hashes of keys, so that equal rows give equal trees.
type node struct {
	key, value  []byte
	priority    uint64
	left, right *node
}

// set returns the tree with key's value replaced or added.
func (n *node) set(key, value []byte, priority uint64) *node {
	// A key that exists below n has a priority no higher than n's, so a higher one is new here.
	if n == nil || priority > n.priority {
		left, right := n.split(key)
		return &node{key, value, priority, left, right}
	}
	switch order := bytes.Compare(key, n.key); {
	case order < 0:
		return &node{n.key, n.value, n.priority, n.left.set(key, value, priority), n.right}
	case order > 0:
		return &node{n.key, n.value, n.priority, n.left, n.right.set(key, value, priority)}
	}
	return &node{n.key, value, n.priority, n.left, n.right}
}

// remove returns the tree without key.
func (n *node) remove(key []byte) *node {
	if n == nil {
		return nil
	}
	switch order := bytes.Compare(key, n.key); {
	case order < 0:
		return &node{n.key, n.value, n.priority, n.left.remove(key), n.right}
	case order > 0:
		return &node{n.key, n.value, n.priority, n.left, n.right.remove(key)}
	}
	return merge(n.left, n.right)
}

// removeRange returns the tree without the keys in [start, end), which is not empty.
func (n *node) removeRange(start, end []byte) *node {
	before, rest := n.split(start)
	_, after := rest.split(end)
	return merge(before, after)
}

// get returns key's value.
func (n *node) get(key []byte) (value []byte, ok bool) {
	for n != nil {
		switch order := bytes.Compare(key, n.key); {
		case order < 0:
			n = n.left
		case order > 0:
			n = n.right
		default:
			return n.value, true
		}
	}
	return nil, false
}

// split returns the trees of the keys before key and of the others.
func (n *node) split(key []byte) (before, others *node) {
	if n == nil {
		return nil, nil
	}
	if bytes.Compare(n.key, key) < 0 {
		before, others = n.right.split(key)
		return &node{n.key, n.value, n.priority, n.left, before}, others
	}
	before, others = n.left.split(key)
	return before, &node{n.key, n.value, n.priority, others, n.right}
}

// merge joins two trees, all of whose keys are in order.
func merge(a, b *node) *node {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.priority >= b.priority:
		return &node{a.key, a.value, a.priority, a.left, merge(a.right, b)}
	}
	return &node{b.key, b.value, b.priority, merge(a, b.left), b.right}
}

// priorityOf hashes a key (FNV-1a, and a finishing step because treaps compare the high bits).
func priorityOf(key []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range key {
		h = (h ^ uint64(c)) * 1099511628211
	}
	h = (h ^ h>>32) * 0x9e3779b97f4a7c15
	return h ^ h>>29
}

// treapIter walks a tree within bounds; path holds the nodes whose own turn is still to come, the current one last.
type treapIter struct {
	root       *node
	start, end []byte
	path       []*node
}

func (i *treapIter) First() bool {
	i.path = i.path[:0]
	for n := i.root; n != nil; {
		if bytes.Compare(n.key, i.start) < 0 {
			n = n.right
			continue
		}
		i.path = append(i.path, n)
		n = n.left
	}
	return i.Valid()
}

func (i *treapIter) Next() bool {
	if !i.Valid() {
		return false
	}
	last := len(i.path) - 1
	n := i.path[last].right
	i.path = i.path[:last]
	for ; n != nil; n = n.left {
		i.path = append(i.path, n)
	}
	return i.Valid()
}

func (i *treapIter) Valid() bool {
	if len(i.path) == 0 {
		return false
	}
	return i.end == nil || bytes.Compare(i.path[len(i.path)-1].key, i.end) < 0
}

func (i *treapIter) Key() []byte   { return i.path[len(i.path)-1].key }
func (i *treapIter) Value() []byte { return i.path[len(i.path)-1].value }
