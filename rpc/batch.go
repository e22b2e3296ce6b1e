package rpc

import (
	"context"
	"fmt"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

const (
	// maxChunkBytes bounds a chunk of a batch, so that the log's turns stay short; a single larger item goes alone.
	maxChunkBytes = 64 << 10
	// maxProposals bounds how many chunks of one call are under way at once, and how many of them at one shard.
	maxProposals         = 64
	maxProposalsPerShard = 8
)

// place is where an item of a batch goes: items of several priorities are not put together, because an overloaded shard
// refuses by priority.
type place struct {
	shard    uint32
	priority uint32
}

// chunk is a part of a batch that goes to one shard as one command.
type chunk struct {
	shard uint32
	// items are indices into the batch.
	items []int
}

// chunks groups n items by place, each chunk of at most fsm.MaxBatch items and about maxChunkBytes. at says where an item
// goes and how many bytes it has; ok false leaves it out. The order of one place's items is kept.
func chunks(n int, at func(i int) (to place, size int, ok bool)) []*chunk {
	type open struct {
		chunk *chunk
		bytes int
	}
	var all []*chunk
	current := map[place]*open{}
	for i := range n {
		to, size, ok := at(i)
		if !ok {
			continue
		}
		o := current[to]
		if o == nil {
			o = &open{}
			current[to] = o
		}
		if o.chunk == nil || len(o.chunk.items) == fsm.MaxBatch || o.bytes+size > maxChunkBytes {
			o.chunk, o.bytes = &chunk{shard: to.shard}, 0
			all = append(all, o.chunk)
		}
		o.chunk.items = append(o.chunk.items, i)
		o.bytes += size
	}
	return all
}

// proposeChunks proposes all chunks, as many at once as the shards' queues surely take, and hands each item's result, or
// the error of its chunk, to done. When ctx ends, chunks that were not proposed yet never are.
func (s *server) proposeChunks(
	ctx context.Context, all []*chunk, command func(c *chunk) *storagev1.Command, done func(i int, item fsm.Item, err error),
) {
	for len(all) > 0 {
		if err := ctx.Err(); err != nil {
			for _, c := range all {
				for _, i := range c.items {
					done(i, fsm.Item{}, err)
				}
			}
			return
		}
		var now, later []*chunk
		var cmds []ShardCommand
		atShard := map[uint32]int{}
		for _, c := range all {
			if len(now) == maxProposals || atShard[c.shard] == maxProposalsPerShard {
				later = append(later, c)
				continue
			}
			atShard[c.shard]++
			now = append(now, c)
			cmds = append(cmds, ShardCommand{c.shard, command(c)})
		}
		for n, outcome := range s.backend.DoAll(ctx, cmds) {
			items, err := itemsOf(now[n].shard, outcome.Result, outcome.Err, len(now[n].items))
			for k, i := range now[n].items {
				if err != nil {
					done(i, fsm.Item{}, err)
					continue
				}
				done(i, items[k], nil)
			}
		}
		all = later
	}
}

// proposeItems proposes a command that has a result for each of n items.
func (s *server) proposeItems(ctx context.Context, shard uint32, cmd *storagev1.Command, n int) ([]fsm.Item, error) {
	result, err := s.backend.Do(ctx, shard, cmd)
	return itemsOf(shard, result, err, n)
}

// itemsOf is the results of a command's n items; a refusal of the whole command is an error.
func itemsOf(shard uint32, result fsm.Result, err error, n int) ([]fsm.Item, error) {
	switch {
	case err != nil:
		return nil, err
	case result.Refusal != nil:
		return nil, &Refused{result.Refusal}
	case len(result.Items) != n:
		return nil, fmt.Errorf("propose to shard %d: %d results for %d items", shard, len(result.Items), n)
	}
	return result.Items, nil
}

// propose proposes a command; a refusal of the whole command is an error.
func (s *server) propose(ctx context.Context, shard uint32, cmd *storagev1.Command) (fsm.Result, error) {
	result, err := s.backend.Do(ctx, shard, cmd)
	if err == nil && result.Refusal != nil {
		err = &Refused{result.Refusal}
	}
	return result, err
}
