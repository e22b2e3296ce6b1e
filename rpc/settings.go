package rpc

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/carillon-scheduler/carillon/fsm"
)

// anyIfZero is an expected version as the backend takes it: in the API 0 means any.
func anyIfZero(expected uint64) uint64 {
	if expected == 0 {
		return AnyVersion
	}
	return expected
}

// refusedWith says whether err is a refusal with this code.
func refusedWith(err error, code fsm.Code) bool {
	var refused *Refused
	return errors.As(err, &refused) && refused.Refusal.Code == code
}

func exists(err error) bool { return refusedWith(err, fsm.AlreadyExists) }

// settings is what queues and tenants have in common.
type settings interface{ GetVersion() uint64 }

// getOrBlank is a get that answers blank settings, of version 0, where there are none.
func getOrBlank[S settings](get func(context.Context, string) (S, error), blank S) func(context.Context, string) (S, error) {
	return func(ctx context.Context, name string) (S, error) {
		standing, err := get(ctx, name)
		if refusedWith(err, fsm.NotFound) {
			return blank, nil
		}
		return standing, err
	}
}

// replaceSettings reads, changes and writes settings. Without an expected version it starts over, at most maxTries times,
// when another change came between.
func replaceSettings[S settings](
	ctx context.Context, name string, expected uint64, get func(context.Context, string) (S, error),
	put func(context.Context, S, uint64) (S, error), change func(S) S,
) (S, error) {
	var none S
	var err error
	for range maxTries {
		var standing S
		if standing, err = get(ctx, name); err != nil {
			return none, err
		}
		if version := standing.GetVersion(); expected != 0 && version != expected {
			return none, &Refused{&fsm.Refusal{Code: fsm.Aborted, Message: "the version has moved on", Version: version}}
		}
		var now S
		now, err = put(ctx, change(standing), standing.GetVersion())
		isRace := refusedWith(err, fsm.Aborted) || standing.GetVersion() == 0 && exists(err)
		if expected != 0 || !isRace {
			return now, err
		}
	}
	return none, errKeepsChanging
}

// lagging takes the shards that lag out of an error: the change itself was made.
func lagging(err error) (shards []uint32, other error) {
	var l *Lagging
	if errors.As(err, &l) {
		return l.Shards, nil
	}
	return nil, err
}

// namedPage is what is asked of a list that is ordered by name: at most limit of the names behind after.
type namedPage struct {
	id    uint64
	limit int
	// after is the last name of the page before; empty: there was none.
	after string
}

func parseNamedPage(list string, size int32, token string) (namedPage, error) {
	var v violations
	page := namedPage{id: listID(list), limit: v.pageSize(size)}
	if token != "" {
		at, err := parsePageToken(token, page.id)
		if err != nil {
			v.add("page_token", "is malformed, or of another list")
		}
		page.after = string(at.cursor)
	}
	return page, v.err()
}

// next is the token of the page behind the name last.
func (p namedPage) next(last string) string {
	return pageToken{list: p.id, cursor: []byte(last)}.String()
}

// pageOfSettings cuts one page out of all settings, ordered by name.
func pageOfSettings[S any](list string, all []S, name func(S) string, size int32, token string) (page []S, next string, err error) {
	asked, err := parseNamedPage(list, size, token)
	if err != nil {
		return nil, "", err
	}
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b S) int { return cmp.Compare(name(a), name(b)) })
	for _, s := range all {
		if name(s) <= asked.after {
			continue
		}
		if len(page) == asked.limit {
			return page, asked.next(name(page[asked.limit-1])), nil
		}
		page = append(page, s)
	}
	return page, "", nil
}

// maxTries bounds how often a call looks again when what it found has moved on.
const maxTries = 5

// keepsChanging is for callers that named no version, which has moved on from try to try: nothing was done, and what they
// want is no conflict, but may pass later.
func keepsChanging(err error) error {
	if !refusedWith(err, fsm.Aborted) {
		return err
	}
	return errKeepsChanging
}

var errKeepsChanging = &Refused{&fsm.Refusal{Code: fsm.Moved, Message: "others keep changing it"}}
