package schedule

import (
	"encoding/binary"
	"sync"

	"github.com/carillon-scheduler/carillon/cron"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// maxCached bounds a generation of the cache. An ordinary schedule has half a kilobyte, the largest 12 KiB beside its text.
const maxCached = 1024

// compiled holds schedules by their content. What is used stays: when the young generation is full it becomes the old one,
// and what is asked for there moves on.
var compiled cache

type cache struct {
	mu         sync.Mutex
	young, old map[string]*cron.Schedule
}

// get returns nil for what is not there.
func (c *cache) get(key string) *cron.Schedule {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.young[key]; s != nil {
		return s
	}
	s := c.old[key]
	if s != nil {
		c.add(key, s)
	}
	return s
}

func (c *cache) put(key string, s *cron.Schedule) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(key, s)
}

func (c *cache) add(key string, s *cron.Schedule) {
	if c.young == nil || len(c.young) >= maxCached {
		c.young, c.old = make(map[string]*cron.Schedule), c.young
	}
	c.young[key] = s
}

// keyOf is everything of a record that Compile looks at, each part with its length.
func keyOf(c *storagev1.Cron) string {
	key := make([]byte, 0, 256)
	list := func(parts ...string) {
		key = binary.AppendUvarint(key, uint64(len(parts)))
		for _, p := range parts {
			key = binary.AppendUvarint(key, uint64(len(p)))
			key = append(key, p...)
		}
	}
	list(c.Lines...)
	list(c.Zone)
	list(c.ExcludeDates...)
	list(c.ExcludeWeekdays)
	list(c.ExcludeLines...)
	key = binary.AppendUvarint(key, uint64(c.Gap))
	key = binary.AppendUvarint(key, uint64(c.Repeat))
	key = binary.AppendVarint(key, c.StartMs)
	key = binary.AppendVarint(key, c.EndMs)
	return string(key)
}
