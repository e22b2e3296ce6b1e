package rpc

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// defaultName is the tenant and the queue of a job that names none.
const defaultName = "default"

// paths are the fields' paths in error details. They are constants, so that a valid request costs no string building.
const (
	pathTenant        = "job.tenant"
	pathQueue         = "job.queue"
	pathPayload       = "job.payload"
	pathContentType   = "job.content_type"
	pathPayloadRef    = "job.payload_ref"
	pathLabels        = "job.labels"
	pathHeaders       = "job.headers"
	pathPriority      = "job.priority"
	pathFairness      = "job.fairness_key"
	pathLease         = "job.lease"
	pathStartDeadline = "job.start_deadline"
	pathRetention     = "job.retention"
	pathWindow        = "job.catch_up_window"
	pathCatchUp       = "job.catch_up"
	pathState         = "job.state"
	pathPauseReason   = "job.pause_reason"
	pathSchedule      = "job.schedule"
	pathSpread        = "job.schedule.spread"
	pathMaxFires      = "job.schedule.max_fires_per_day"
	pathOverlap       = "job.overlap"
	pathPerMinute     = "job.catch_up_per_minute"
	pathFailures      = "job.pause_after_failures"
)

// jobSpec validates a job and translates it, with defaults filled in. The id is set as given; the hash is not set yet.
func (s *server) jobSpec(v *violations, spec *carillonv1.JobSpec, nowMS int64) *storagev1.CreateJob {
	if spec == nil {
		v.add("job", "is required")
		return nil
	}
	v.optionalName("job.id", spec.Id)
	v.optionalName(pathTenant, spec.Tenant)
	v.optionalName(pathQueue, spec.Queue)
	c := &storagev1.CreateJob{
		Tenant:   cmp.Or(spec.Tenant, defaultName),
		JobId:    spec.Id,
		Schedule: v.schedule(spec.Schedule, nowMS),
		Labels:   v.labels(pathLabels, spec.Labels),
		Template: &storagev1.Template{
			Queue:           cmp.Or(spec.Queue, defaultName),
			Priority:        v.priority(spec.Priority),
			FairnessKey:     spec.FairnessKey,
			Payload:         spec.Payload,
			ContentType:     spec.ContentType,
			PayloadRef:      spec.PayloadRef,
			Headers:         v.headers(spec.Headers),
			Retry:           v.retry(spec.Retry),
			LeaseMs:         v.duration(pathLease, spec.Lease, defaultLease, minLease, maxLease),
			StartDeadlineMs: v.positive(pathStartDeadline, spec.StartDeadline, maxStartDeadline),
			RetentionMs:     v.duration(pathRetention, spec.Retention, 0, minRetention, maxRetention),
		},
		CatchUp:         v.catchUp(spec.CatchUp, spec.Schedule),
		CatchUpWindowMs: v.positive(pathWindow, spec.CatchUpWindow, maxWindow),
	}
	v.recurring(c, spec)
	v.text(pathFairness, spec.FairnessKey, maxFairnessBytes)
	s.payload(v, spec.Payload, spec.ContentType, spec.PayloadRef)
	return c
}

// payload checks a payload and what describes it.
func (s *server) payload(v *violations, payload []byte, contentType, ref string) {
	v.size(pathPayload, len(payload), s.maxPayload)
	v.printable(pathContentType, contentType, maxContentTypeBytes)
	v.text(pathPayloadRef, ref, maxPayloadRefBytes)
	if len(payload) > 0 && ref != "" {
		v.add(pathPayloadRef, "excludes payload: a job has one of them")
	}
}

// priority translates a priority; unset is the middle.
func (v *violations) priority(p *uint32) uint32 {
	if p == nil {
		return defaultPriority
	}
	if *p > maxPriority {
		v.add(pathPriority, "is %d; it must be 0 to %d", *p, maxPriority)
	}
	return *p
}

// retry translates a retry policy, each unset field by its default.
func (v *violations) retry(r *carillonv1.RetryPolicy) *storagev1.RetryPolicy {
	out := &storagev1.RetryPolicy{
		MaxAttempts: cmp.Or(r.GetMaxAttempts(), defaultAttempts),
		FirstDelayMs: v.duration("job.retry.first_delay", r.GetFirstDelay(), defaultFirstDelay, 0,
			maxFirstDelay),
		FactorThousandths: cmp.Or(r.GetFactorThousandths(), defaultFactor),
		MaxDelayMs:        v.duration("job.retry.max_delay", r.GetMaxDelay(), defaultMaxDelay, 0, maxRetryDelay),
		JitterThousandths: defaultJitter,
	}
	if r != nil && r.JitterThousandths != nil {
		out.JitterThousandths = *r.JitterThousandths
	}
	if out.MaxAttempts > maxAttempts {
		v.add("job.retry.max_attempts", "is %d; it must be %d to %d", out.MaxAttempts, minAttempts, maxAttempts)
	}
	if f := out.FactorThousandths; f < minFactor || f > maxFactor {
		v.add("job.retry.factor_thousandths", "is %d; it must be %d to %d", f, minFactor, maxFactor)
	}
	if out.JitterThousandths > maxJitter {
		v.add("job.retry.jitter_thousandths", "is %d; it must be 0 to %d", out.JitterThousandths, maxJitter)
	}
	return out
}

// positive is duration for fields whose unset value is "no bound": what is set must be more than 0.
func (v *violations) positive(field string, d *durationpb.Duration, high time.Duration) int64 {
	if d == nil {
		return 0
	}
	return v.duration(field, d, 0, time.Millisecond, high)
}

// labels checks and sorts labels.
func (v *violations) labels(field string, labels map[string]string) []*storagev1.KeyValue {
	if len(labels) > maxLabels {
		v.add(field, "has %d entries; at most %d are allowed", len(labels), maxLabels)
		return nil
	}
	out := sortedPairs(labels)
	for _, kv := range out {
		v.pair(field, kv, maxLabelKeyBytes, maxLabelValueBytes)
		if strings.Contains(kv.Key, "=") {
			v.add(field, "has key %q; a label's key has no \"=\"", kv.Key)
		}
	}
	return out
}

// headers checks and sorts headers.
func (v *violations) headers(headers map[string]string) []*storagev1.KeyValue {
	if len(headers) > maxHeaders {
		v.add(pathHeaders, "has %d entries; at most %d are allowed", len(headers), maxHeaders)
		return nil
	}
	out, total := sortedPairs(headers), 0
	for _, kv := range out {
		v.pair(pathHeaders, kv, maxHeaderKeyBytes, maxHeaderValueBytes)
		total += len(kv.Key) + len(kv.Value)
	}
	if total > maxHeadersBytes {
		v.add(pathHeaders, "have %d bytes together; at most %d are allowed", total, maxHeadersBytes)
	}
	return out
}

// pair checks one label or header; its field is named as an element of the map.
func (v *violations) pair(field string, kv *storagev1.KeyValue, maxKey, maxValue int) {
	var inner violations
	if kv.Key == "" {
		inner.add("", "is empty")
	}
	if inner.text("", kv.Key, maxKey); len(inner.list) > 0 {
		v.add(field, "has key %q, which %s", kv.Key[:min(len(kv.Key), maxKey)], inner.list[0].Description)
		return
	}
	if inner.text("", kv.Value, maxValue); len(inner.list) > 0 {
		v.add(field+"["+kv.Key+"]", "%s", inner.list[0].Description)
	}
}

// sortedPairs is a map as storage keeps it.
func sortedPairs(m map[string]string) []*storagev1.KeyValue {
	if len(m) == 0 {
		return nil
	}
	pairs := make([]storagev1.KeyValue, 0, len(m))
	out := make([]*storagev1.KeyValue, 0, len(m))
	for key, value := range m {
		pairs = append(pairs, storagev1.KeyValue{Key: key, Value: value})
		out = append(out, &pairs[len(pairs)-1])
	}
	slices.SortFunc(out, func(a, b *storagev1.KeyValue) int { return strings.Compare(a.Key, b.Key) })
	return out
}
