package rpc

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/carillon-scheduler/carillon/cron"
	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// maxShardWindow bounds how many shards a list reads at once.
const maxShardWindow = 16

// shardPage is what one shard has of a list: its items from a cursor on, and where it goes on; next nil: nowhere.
type shardPage[T any] struct {
	items []T
	next  []byte
}

// listing is a list over shards.
type listing[T any] struct {
	id     uint64
	shards []uint32
	stale  bool
	limit  int
	// read reads at most limit items of a shard from cursor on.
	read func(r fsm.Reader, cursor []byte, limit int) shardPage[T]
}

// page reads one page: shard after shard, in the order of their numbers. The more shards have nothing, the more are
// read at once. token is where the page before ended.
func (l *listing[T]) page(ctx context.Context, s *server, token string) (items []T, next string, err error) {
	var at pageToken
	if token != "" {
		if at, err = parsePageToken(token, l.id); err != nil {
			return nil, "", invalidField("page_token", "is malformed, or of a list with other filters")
		}
	}
	rest := l.shards
	for len(rest) > 0 && rest[0] < at.shard {
		rest = rest[1:]
	}
	cursor := at.cursor
	if len(rest) > 0 && rest[0] != at.shard {
		cursor = nil
	}
	window := 1
	for len(rest) > 0 {
		now := rest[:min(window, len(rest))]
		pages, err := l.readWindow(ctx, s, now, cursor, l.limit-len(items))
		if err != nil {
			return nil, "", err
		}
		for k, page := range pages {
			fit := min(len(page.items), l.limit-len(items))
			// Of a page that does not fit whole there is no cursor in its middle: it is left for the next call.
			if fit < len(page.items) {
				return items, pageToken{list: l.id, shard: now[k]}.String(), nil
			}
			items = append(items, page.items...)
			switch {
			case page.next != nil:
				return items, pageToken{list: l.id, shard: now[k], cursor: page.next}.String(), nil
			case len(items) == l.limit && len(rest) > k+1:
				return items, pageToken{list: l.id, shard: rest[k+1]}.String(), nil
			}
		}
		rest, cursor = rest[len(now):], nil
		window = min(2*window, maxShardWindow)
	}
	return items, "", nil
}

// readWindow reads a page of each of the shards at once. cursor is the first one's.
func (l *listing[T]) readWindow(ctx context.Context, s *server, shards []uint32, cursor []byte, limit int) ([]shardPage[T], error) {
	pages := make([]shardPage[T], len(shards))
	group, groupCtx := errgroup.WithContext(ctx)
	for k, shard := range shards {
		var from []byte
		if k == 0 {
			from = cursor
		}
		group.Go(func() error {
			return s.backend.View(groupCtx, shard, l.stale, func(r fsm.Reader) error {
				pages[k] = l.read(r, from, limit)
				return nil
			})
		})
	}
	return pages, group.Wait()
}

func (s *server) listJobs(ctx context.Context, req *carillonv1.ListJobsRequest) (*carillonv1.ListJobsResponse, error) {
	filter, limit, err := jobFilter(req)
	if err != nil {
		return nil, err
	}
	list := listing[*carillonv1.Job]{
		id: listID(append([]string{"jobs", filter.Tenant, filter.Queue, filter.IDPrefix, strconv.Itoa(int(filter.State))}, req.Label...)...),
		// Ids hash to shards, so that a prefix is in all of them.
		shards: s.backend.Shards(), stale: req.Stale, limit: limit,
		read: func(r fsm.Reader, cursor []byte, limit int) shardPage[*carillonv1.Job] {
			views, next := fsm.ListJobs(r, filter, cursor, limit, maxRowsPerPage)
			page := shardPage[*carillonv1.Job]{next: next}
			stops := fsm.NewStops(r, filter.Tenant)
			for i := range views {
				job := jobOf(&views[i])
				job.StoppedBy = stoppedBy(stops, &views[i])
				page.items = append(page.items, job)
			}
			return page
		},
	}
	jobs, next, err := list.page(ctx, s, req.PageToken)
	if err != nil {
		return nil, err
	}
	return &carillonv1.ListJobsResponse{Jobs: jobs, NextPageToken: next}, nil
}

// jobFilter validates and translates the filters of a list of jobs.
func jobFilter(req *carillonv1.ListJobsRequest) (fsm.JobFilter, int, error) {
	var v violations
	limit := v.pageSize(req.PageSize)
	v.optionalName("tenant", req.Tenant)
	v.optionalName("queue", req.Queue)
	v.optionalName("id_prefix", req.IdPrefix)
	filter := fsm.JobFilter{Tenant: req.Tenant, Queue: req.Queue, IDPrefix: req.IdPrefix}
	if filter.Tenant == "" {
		filter.Tenant = defaultName
	}
	switch req.State {
	case carillonv1.JobState_JOB_STATE_UNSPECIFIED:
	default:
		for state, public := range jobStates {
			if public == req.State {
				filter.State = state
			}
		}
		if filter.State == storagev1.JobState_JOB_STATE_UNSPECIFIED {
			v.add("state", "is %d, which is none of the states", req.State)
		}
	}
	filter.Labels = v.labelFilters("label", req.Label)
	return filter, limit, v.err()
}

// labelFilters validates and translates filters of the form "key=value", or "key" for any value.
func (v *violations) labelFilters(field string, labels []string) (filters []fsm.LabelFilter) {
	if len(labels) > maxLabelFilters {
		v.add(field, "has %d filters; at most %d are allowed", len(labels), maxLabelFilters)
	}
	for _, label := range labels {
		key, value, hasValue := strings.Cut(label, "=")
		v.pair(field, &storagev1.KeyValue{Key: key, Value: value}, maxLabelKeyBytes, maxLabelValueBytes)
		filters = append(filters, fsm.LabelFilter{Key: key, Value: value, AnyValue: !hasValue})
	}
	return filters
}

func (s *server) getJobHistory(
	ctx context.Context, req *carillonv1.GetJobHistoryRequest,
) (*carillonv1.GetJobHistoryResponse, error) {
	var v violations
	ref := v.job(req.Id, req.Tenant)
	limit := v.pageSize(req.PageSize)
	if err := v.err(); err != nil {
		return nil, err
	}
	shard, list := s.backend.ShardOf(ref.tenant, ref.id), listID("history", ref.tenant, ref.id)
	var at pageToken
	if req.PageToken != "" {
		var err error
		if at, err = parsePageToken(req.PageToken, list); err != nil {
			return nil, invalidField("page_token", "is malformed, or of another job")
		}
	}
	res, exists := &carillonv1.GetJobHistoryResponse{}, false
	err := s.backend.View(ctx, shard, req.Stale, func(r fsm.Reader) error {
		view, ok := fsm.GetJob(r, ref.tenant, ref.id)
		exists = ok
		res = historyOf(fsm.ReadHistory(r, ref.tenant, ref.id, at.cursor, limit), list, shard)
		if exists {
			addLocal(res, zoneOf(view.Job.Schedule))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	empty := len(res.Executions)+len(res.Verdicts)+len(res.LateAttempts) == 0 && res.NextPageToken == ""
	if !exists && empty && req.PageToken == "" {
		return nil, notFound("no job %q in tenant %q, and no history of it", ref.id, ref.tenant)
	}
	return res, nil
}

// addLocal adds to a page of history what the clock of a zone shows.
func addLocal(page *carillonv1.GetJobHistoryResponse, zone *cron.Zone) {
	local := func(t *timestamppb.Timestamp) string { return localOf(zone, t.AsTime().UnixMilli()) }
	for _, e := range page.Executions {
		e.NominalLocal = local(e.NominalTime)
	}
	for _, v := range page.Verdicts {
		v.FromLocal, v.ToLocal = local(v.From), local(v.To)
	}
}

func (s *server) listExecutions(
	ctx context.Context, req *carillonv1.ListExecutionsRequest,
) (*carillonv1.ListExecutionsResponse, error) {
	var v violations
	limit := v.pageSize(req.PageSize)
	v.optionalName("tenant", req.Tenant)
	v.optionalName("job_id", req.JobId)
	v.optionalName("queue", req.Queue)
	if _, ok := carillonv1.ExecutionState_name[int32(req.State)]; !ok {
		v.add("state", "is %d, which is none of the states", req.State)
	}
	if _, ok := carillonv1.ExecutionKind_name[int32(req.Kind)]; !ok {
		v.add("kind", "is %d, which is none of the kinds", req.Kind)
	}
	if err := v.err(); err != nil {
		return nil, err
	}
	filter := fsm.ExecutionFilter{
		Tenant: req.Tenant, JobID: req.JobId, Queue: req.Queue, State: storagev1.ExecutionState(req.State),
		Kind: storagev1.ExecutionKind(req.Kind),
	}
	if filter.Tenant == "" {
		filter.Tenant = defaultName
	}
	shards := s.backend.Shards()
	if filter.JobID != "" {
		shards = []uint32{s.backend.ShardOf(filter.Tenant, filter.JobID)}
	}
	list := listing[*carillonv1.Execution]{
		id: listID("executions", filter.Tenant, filter.JobID, filter.Queue, strconv.Itoa(int(filter.State)),
			strconv.Itoa(int(filter.Kind))),
		shards: slices.Clone(shards), stale: req.Stale, limit: limit,
		read: func(r fsm.Reader, cursor []byte, limit int) shardPage[*carillonv1.Execution] {
			found, next := fsm.ListExecutions(r, filter, cursor, limit, maxRowsPerPage)
			page := shardPage[*carillonv1.Execution]{next: next}
			for _, e := range found {
				page.items = append(page.items, executionOf(e, fsm.ExecutionID(e), false))
			}
			return page
		},
	}
	executions, next, err := list.page(ctx, s, req.PageToken)
	if err != nil {
		return nil, err
	}
	return &carillonv1.ListExecutionsResponse{Executions: executions, NextPageToken: next}, nil
}
