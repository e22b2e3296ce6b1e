package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/carillon-scheduler/carillon/fsm"
	"github.com/carillon-scheduler/carillon/node/control"
	"github.com/carillon-scheduler/carillon/store"
)

// The slot map and this store's shards as last read from the control plane, kept in the store's own rows: a restart knows
// what it holds, whatever the control plane can say at that moment.
var mapKey = store.AppendKey(nil, 0, []byte{'M'})

const mapRowVersion = 1

// The stores of the cluster as last heard of, so that a restart finds the other nodes without the control plane.
var storesKey = store.AppendKey(nil, 0, []byte{'N'})

// knownStore is a store in that row, which is JSON: it is small and seldom written.
type knownStore struct {
	UUID string `json:"uuid"`
	Name string `json:"name"`
	Addr string `json:"addr"`
}

// slotMap says which shard a job belongs to.
type slotMap struct {
	version uint64
	shards  []uint32 // in order
	slots   [control.Slots]uint32
}

// newSlotMap checks a map of the control plane: every slot must belong to a shard that exists.
func newSlotMap(m *control.Map) (*slotMap, error) {
	s := &slotMap{version: m.Version, slots: m.Slots}
	for _, shard := range m.Shards {
		s.shards = append(s.shards, shard.ID)
	}
	return s, s.check()
}

func (s *slotMap) check() error {
	if len(s.shards) == 0 || !slices.IsSorted(s.shards) {
		return errors.New("slot map has no shards, or out of order")
	}
	for slot, shard := range s.slots {
		if _, ok := slices.BinarySearch(s.shards, shard); !ok {
			return fmt.Errorf("slot map: slot %d belongs to shard %d, which does not exist", slot, shard)
		}
	}
	return nil
}

func (s *slotMap) shardOf(tenant, jobID string) uint32 { return s.slots[fsm.Slot(tenant, jobID)] }

func (s *slotMap) equal(o *slotMap) bool {
	return s.version == o.version && s.slots == o.slots && slices.Equal(s.shards, o.shards)
}

func (s *slotMap) encode() []byte {
	b := []byte{mapRowVersion}
	b = binary.AppendUvarint(b, s.version)
	b = binary.AppendUvarint(b, uint64(len(s.shards)))
	for _, shard := range s.shards {
		b = binary.AppendUvarint(b, uint64(shard))
	}
	for _, shard := range s.slots {
		b = binary.AppendUvarint(b, uint64(shard))
	}
	return b
}

func decodeSlotMap(b []byte) (*slotMap, error) {
	if len(b) == 0 || b[0] != mapRowVersion {
		return nil, errors.New("decode slot map: unknown version")
	}
	b = b[1:]
	next := func() (uint64, error) {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return 0, errors.New("decode slot map: cut short")
		}
		b = b[n:]
		return v, nil
	}
	s := &slotMap{}
	var err error
	if s.version, err = next(); err != nil {
		return nil, err
	}
	n, err := next()
	if err != nil {
		return nil, err
	}
	if n > control.MaxShards {
		return nil, fmt.Errorf("decode slot map: %d shards", n)
	}
	s.shards = make([]uint32, n)
	for _, list := range [][]uint32{s.shards, s.slots[:]} {
		for i := range list {
			v, err := next()
			if err != nil {
				return nil, err
			}
			if v > store.MaxShard {
				return nil, fmt.Errorf("decode slot map: shard %d", v)
			}
			list[i] = uint32(v)
		}
	}
	if len(b) > 0 {
		return nil, errors.New("decode slot map: bytes are left over")
	}
	return s, s.check()
}

// loadSlotMap reads the map kept on this store; nil if there is none.
func loadSlotMap(engine store.Engine) (*slotMap, error) {
	row, ok, err := engine.Get(mapKey)
	if err != nil {
		return nil, fmt.Errorf("read slot map: %w", err)
	}
	if !ok {
		return nil, nil
	}
	return decodeSlotMap(row)
}

func saveSlotMap(engine store.Engine, s *slotMap) error {
	b := engine.NewBatch()
	b.Set(mapKey, s.encode())
	wait, err := engine.Commit(b, true)
	if err == nil {
		err = wait()
	}
	if err != nil {
		return fmt.Errorf("write slot map: %w", err)
	}
	return nil
}

// saveStores keeps the addresses of the stores, if they have changed.
func (n *Node) saveStores(stores []control.StoreRecord) error {
	var known []knownStore
	for _, s := range stores {
		if s.State != control.StoreGone {
			known = append(known, knownStore{s.UUID, s.Name, s.Addr})
		}
	}
	row, err := json.Marshal(known)
	if err != nil {
		return fmt.Errorf("encode stores: %w", err)
	}
	standing, _, err := n.engine.Get(storesKey)
	if err != nil || bytes.Equal(standing, row) {
		return err
	}
	b := n.engine.NewBatch()
	b.Set(storesKey, row)
	_, err = n.engine.Commit(b, false) // what a crash loses is told again
	return err
}

// loadStores returns the stores as last heard of.
func (n *Node) loadStores() ([]control.StoreRecord, error) {
	row, ok, err := n.engine.Get(storesKey)
	if err != nil || !ok {
		return nil, err
	}
	var known []knownStore
	if err := json.Unmarshal(row, &known); err != nil {
		return nil, fmt.Errorf("decode stores: %w", err)
	}
	var stores []control.StoreRecord
	for _, s := range known {
		stores = append(stores, control.StoreRecord{UUID: s.UUID, Name: s.Name, Addr: s.Addr, State: control.StoreUp})
	}
	return stores, nil
}

// recallStores takes up what this store has known of the others, for a start without the control plane.
func (n *Node) recallStores(ctx context.Context) (err error) {
	select {
	case <-n.storeOpen:
	case <-ctx.Done():
		return ctx.Err()
	}
	if n.engine == nil { // it could not be opened, which ends the start
		<-ctx.Done()
		return ctx.Err()
	}
	n.known, err = n.loadStores()
	return err
}
