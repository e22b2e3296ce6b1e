package control

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// The controller's office is one key, bound to the lease of the store that holds it. Each term creates the key anew, so
// that the revision of its creation tells the term from every other; a write that compares it is fenced by etcd itself.

// office is what this process knows of the office.
type office struct {
	// wake says that the key has changed.
	wake chan struct{}

	mu sync.Mutex
	// Guarded by mu. term is this process's own; changed is closed and made anew with each change of the key.
	term    *Term
	changed chan struct{}
}

func (o *office) current() (*Term, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.term, o.changed
}

// take makes the term with a guard this process's own, the same one if it is already.
func (o *office) take(guard int64) *Term {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.term == nil || o.term.guard != guard {
		if o.term != nil {
			o.term.end()
		}
		o.term = newTerm(guard)
	}
	return o.term
}

// leave ends a term.
func (o *office) leave(term *Term) {
	term.end()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.term == term {
		o.term = nil
	}
}

func (o *office) broadcast() {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.changed)
	o.changed = make(chan struct{})
}

// Campaign is woken by keepTerm.
func (p *Etcd) Campaign(ctx context.Context) (*Term, error) {
	for {
		_, changed := p.office.current()
		term, err := p.campaign(ctx)
		if err != nil {
			return nil, fmt.Errorf("campaign for controller: %w", err)
		}
		if term != nil {
			return term, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("campaign for controller: %w", unavailable(ctx.Err()))
		case <-changed:
		}
	}
}

// campaign takes the office if it is free, or was left by this store in an earlier lease. A nil term: it is taken.
func (p *Etcd) campaign(ctx context.Context) (*Term, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	store, lease := p.session.identity()
	if store.UUID == "" {
		return nil, ErrNotRegistered
	}
	if lease == clientv3.NoLease {
		return nil, ErrLapsed
	}
	own := encodeJSON(termRecord{Store: store.UUID, BootID: store.BootID})
	for range casAttempts {
		response, err := p.client.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(keyTerm), "=", 0)).
			Then(clientv3.OpPut(keyTerm, own, clientv3.WithLease(lease))).
			Else(clientv3.OpGet(keyTerm)).Commit()
		if isLeaseNotFound(err) {
			p.session.lost(lease)
			return nil, ErrLapsed
		}
		if err != nil {
			return nil, unavailable(err)
		}
		if response.Succeeded {
			return p.office.take(response.Header.Revision), nil
		}
		standing := response.Responses[0].GetResponseRange().Kvs[0]
		var record termRecord
		if err := decodeJSON(keyTerm, standing.Value, &record); err != nil {
			return nil, err
		}
		if record.Store != store.UUID {
			return nil, nil
		}
		if record.BootID == store.BootID && clientv3.LeaseID(standing.Lease) == lease {
			return p.office.take(standing.CreateRevision), nil // the answer was lost
		}
		if err := p.dropTerm(ctx, standing.CreateRevision); err != nil {
			return nil, err
		}
	}
	return nil, unavailable(fmt.Errorf("%s changes all the time", keyTerm))
}

func (p *Etcd) dropTerm(ctx context.Context, guard int64) error {
	_, err := p.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(keyTerm), "=", guard)).
		Then(clientv3.OpDelete(keyTerm)).Commit()
	if err != nil {
		return unavailable(err)
	}
	return nil
}

func (p *Etcd) Resign(ctx context.Context, term *Term) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	p.office.leave(term)
	if err := p.dropTerm(ctx, term.guard); err != nil {
		return fmt.Errorf("resign as controller: %w", err)
	}
	return nil
}

func (p *Etcd) watchOffice(ctx context.Context) error {
	wake := func() {
		select {
		case p.office.wake <- struct{}{}:
		default:
		}
	}
	return p.follow(ctx, keyTerm,
		func(*mvccpb.KeyValue) error { wake(); return nil },
		func(string) error { wake(); return nil })
}

// keepTerm reads the office whenever it has changed: what a watch tells may be older than a term that has just been won.
func (p *Etcd) keepTerm(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.office.wake:
		}
		for err := p.checkTerm(ctx); err != nil; err = p.checkTerm(ctx) {
			p.log.Debug("controller not read", "error", err)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(watchPause):
			}
		}
		p.office.broadcast()
	}
}

func (p *Etcd) checkTerm(ctx context.Context) error {
	term, _ := p.office.current()
	if term == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	response, err := p.client.Get(ctx, keyTerm)
	if err != nil {
		return unavailable(err)
	}
	if len(response.Kvs) == 0 || response.Kvs[0].CreateRevision != term.guard {
		p.office.leave(term)
	}
	return nil
}

// standsAt says that a key was written last at a revision; 0: it is not there.
func standsAt(key string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(key), "=", revision)
}

// guarded is a transaction that happens only while term lasts and also the guards hold. ErrDeposed: it does not; false: they
// do not.
func (p *Etcd) guarded(ctx context.Context, term *Term, op clientv3.Op, guards ...clientv3.Cmp) (bool, error) {
	if term != nil {
		guards = append(guards, clientv3.Compare(clientv3.CreateRevision(keyTerm), "=", term.guard))
	}
	response, err := p.client.Txn(ctx).If(guards...).Then(op).Else(clientv3.OpGet(keyTerm)).Commit()
	if err != nil {
		return false, unavailable(err)
	}
	if response.Succeeded || term == nil {
		return response.Succeeded, nil
	}
	standing := response.Responses[0].GetResponseRange().Kvs
	if len(standing) == 0 || standing[0].CreateRevision != term.guard {
		p.office.leave(term)
		return false, ErrDeposed
	}
	return false, nil
}
