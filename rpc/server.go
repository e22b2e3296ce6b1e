package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	connectcors "connectrpc.com/cors"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	"github.com/rs/cors"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
	"github.com/carillon-scheduler/carillon/proto/carillon/v1/carillonv1connect"
)

// Options tune the handler. The zero value is usable.
type Options struct {
	// Logger; nil: slog.Default().
	Logger *slog.Logger
	// Metrics is told of each call; nil: nobody is.
	Metrics Metrics
	// Ready says why the node does not serve, for the gRPC health service; nil: it always does.
	Ready func() error
	// CORSOrigins may call from a browser ("https://console.example", "*"); empty: none may.
	CORSOrigins []string
	// MaxPayloadBytes bounds a job's payload, at most LargestMaxPayloadBytes. 0: DefaultMaxPayloadBytes.
	MaxPayloadBytes int
	// MaxFiresPerDay bounds how often a recurring job may fire on its busiest day. 0: no bound.
	MaxFiresPerDay int
}

// server holds what the handlers share. Of state it has a counter only.
type server struct {
	backend    Backend
	log        *slog.Logger
	metrics    Metrics
	maxPayload int
	// maxFires bounds the fires per day of recurring jobs; 0: nothing does.
	maxFires uint64

	// procedures by the path of their Connect and gRPC calls.
	procedures map[string]*method
	rest       rest
	// others are health and reflection.
	others *http.ServeMux

	claims claimsWaiting
	turns  turns

	// inflight is the room that the messages under way take; see intake.
	inflight atomic.Int64
	// maxSilence and maxDelivery are the constants, except in tests.
	maxSilence, maxDelivery time.Duration
}

// method is one procedure of the API, as each transport needs it.
type method struct {
	procedure string
	schema    protoreflect.MethodDescriptor
	// connect serves Connect, gRPC and gRPC-web.
	connect http.Handler
	// newRequest and call serve REST: the same handler behind the same observation.
	newRequest func() proto.Message
	call       func(context.Context, proto.Message) (proto.Message, error)
	// maxBytes bounds the request's message.
	maxBytes int
}

// NewHandler serves the public API on one handler: Connect, gRPC and gRPC-web at their procedures' paths, REST below
// /v1/, gRPC health and reflection. gRPC needs HTTP/2, so that the server must allow it without TLS. Everything else is
// 404 in REST's form; the caller mounts what it has besides.
func NewHandler(backend Backend, opts Options) (http.Handler, error) {
	s := &server{
		turns: newTurns(), backend: backend, log: opts.Logger, metrics: opts.Metrics, maxPayload: opts.MaxPayloadBytes,
		procedures: map[string]*method{}, others: http.NewServeMux(), maxSilence: maxSilence, maxDelivery: maxDelivery,
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	if s.maxPayload == 0 {
		s.maxPayload = DefaultMaxPayloadBytes
	}
	if opts.MaxFiresPerDay < 0 {
		return nil, fmt.Errorf("check MaxFiresPerDay: %d is negative", opts.MaxFiresPerDay)
	}
	s.maxFires = uint64(opts.MaxFiresPerDay)
	if s.maxPayload < 0 || s.maxPayload > LargestMaxPayloadBytes {
		return nil, fmt.Errorf("check MaxPayloadBytes: %d is not 0 to %d", s.maxPayload, LargestMaxPayloadBytes)
	}
	s.rest.log = s.log
	for _, m := range s.methods() {
		s.procedures[m.procedure] = m
		rt, err := newRoute(m)
		if err != nil {
			return nil, err
		}
		s.rest.routes = append(s.rest.routes, rt)
	}
	// Routes without values first: of two that match, the more precise wins.
	slices.SortStableFunc(s.rest.routes, func(a, b *route) int { return len(a.params) - len(b.params) })
	s.mountOthers(opts.Ready)
	if len(opts.CORSOrigins) == 0 {
		return s, nil
	}
	return cors.New(cors.Options{
		AllowedOrigins: opts.CORSOrigins,
		AllowedMethods: append(connectcors.AllowedMethods(), http.MethodPut, http.MethodPatch, http.MethodDelete),
		AllowedHeaders: append(connectcors.AllowedHeaders(), "X-Request-Id", "Traceparent", "Idempotency-Key"),
		ExposedHeaders: append(connectcors.ExposedHeaders(), "X-Request-Id", "Retry-After"),
		MaxAge:         7200,
	}).Handler(s), nil
}

// ServeHTTP sends a request to its transport. Connect and gRPC calls are found by one map lookup.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := newCall(w, r)
	c.maxDelivery = s.maxDelivery
	r = r.WithContext(context.WithValue(r.Context(), callKey{}, c))
	m := s.procedures[r.URL.Path]
	maxBytes := int64(maxBatchBytes)
	if m != nil {
		maxBytes = int64(m.maxBytes)
	}
	if !s.admit(c, r, maxBytes) {
		s.refuse(c, r, errNoRoom)
		return
	}
	defer c.body.release()
	switch {
	case m != nil:
		s.serveProcedure(m, c, r)
	case strings.HasPrefix(r.URL.Path, "/v1/"):
		s.rest.serve(c, r)
	default:
		if _, pattern := s.others.Handler(r); pattern == "" {
			s.rest.notFound(c, r)
		} else {
			s.others.ServeHTTP(c, r)
		}
	}
	// A small answer stands in a buffer until this returns: of a caller that is gone only the context tells. One who has a
	// large answer may be done with it by now and have closed the connection.
	isGone := c.writeErr != nil || c.written <= bufferedBytes && r.Context().Err() != nil
	if c.undelivered != nil && isGone {
		c.undelivered()
	}
	c.body.drain(r)
}

// serveProcedure serves a Connect or gRPC call. A message that announces to be too large is refused before it is read.
func (s *server) serveProcedure(m *method, w http.ResponseWriter, r *http.Request) {
	if r.ContentLength <= int64(m.maxBytes) {
		m.connect.ServeHTTP(w, r)
		return
	}
	s.refuse(w, r, invalidField("", "the message has %d bytes; at most %d are allowed", r.ContentLength, m.maxBytes))
}

// refuse answers a request that is not looked into, in the form of its protocol.
func (s *server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	answer, _ := callError(err)
	writer := connect.NewErrorWriter()
	if !writer.IsSupported(r) || strings.HasPrefix(r.URL.Path, "/v1/") {
		s.rest.fail(w, httpStatus[answer.Code()], answer)
		return
	}
	if writeErr := writer.Write(w, r, answer); writeErr != nil {
		s.log.Debug("write error", slog.String("path", r.URL.Path), slog.Any("error", writeErr))
	}
}

// mountOthers mounts health and reflection.
func (s *server) mountOthers(ready func() error) {
	services := serviceNames()
	s.others.Handle(grpchealth.NewHandler(healthChecker{ready: ready, services: services}))
	reflector := grpcreflect.NewStaticReflector(append(services, grpchealth.HealthV1ServiceName)...)
	s.others.Handle(grpcreflect.NewHandlerV1(reflector))
	s.others.Handle(grpcreflect.NewHandlerV1Alpha(reflector))
}

func serviceNames() []string {
	return []string{
		carillonv1connect.JobServiceName, carillonv1connect.WorkerServiceName, carillonv1connect.ExecutionServiceName,
		carillonv1connect.QueueServiceName, carillonv1connect.TenantServiceName, carillonv1connect.ClusterServiceName,
		carillonv1connect.ScheduleServiceName,
	}
}

// healthChecker answers for the node as a whole: all services are ready or none is.
type healthChecker struct {
	ready    func() error
	services []string
}

func (h healthChecker) Check(_ context.Context, req *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	if req.Service != "" && !slices.Contains(h.services, req.Service) {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("unknown service %q", req.Service))
	}
	if h.ready != nil && h.ready() != nil {
		return &grpchealth.CheckResponse{Status: grpchealth.StatusNotServing}, nil
	}
	return &grpchealth.CheckResponse{Status: grpchealth.StatusServing}, nil
}

// methods is the whole API. A test holds it against the proto.
func (s *server) methods() []*method {
	single := s.maxPayload*3/2 + 1<<20
	return []*method{
		unary(s, carillonv1connect.JobServiceCreateJobProcedure, single, s.createJob),
		unary(s, carillonv1connect.JobServiceBatchCreateJobsProcedure, maxBatchBytes, s.batchCreateJobs),
		unary(s, carillonv1connect.JobServiceGetJobProcedure, single, s.getJob),
		unary(s, carillonv1connect.JobServiceListJobsProcedure, single, s.listJobs),
		unary(s, carillonv1connect.JobServiceUpdateJobProcedure, single, s.updateJob),
		unary(s, carillonv1connect.JobServicePutJobProcedure, single, s.putJob),
		unary(s, carillonv1connect.JobServicePauseJobProcedure, single, s.pauseJob),
		unary(s, carillonv1connect.JobServiceResumeJobProcedure, single, s.resumeJob),
		unary(s, carillonv1connect.JobServiceDeleteJobProcedure, single, s.deleteJob),
		unary(s, carillonv1connect.JobServiceTriggerJobProcedure, single, s.triggerJob),
		unary(s, carillonv1connect.JobServiceGetJobHistoryProcedure, single, s.getJobHistory),
		unary(s, carillonv1connect.JobServiceListOccurrencesProcedure, single, s.listOccurrences),
		unary(s, carillonv1connect.JobServiceBackfillJobProcedure, single, s.backfillJob),
		unary(s, carillonv1connect.JobServiceCancelBackfillProcedure, single, s.cancelBackfill),
		unary(s, carillonv1connect.JobServicePreviewResumeProcedure, single, s.previewResume),

		unary(s, carillonv1connect.ScheduleServicePreviewScheduleProcedure, single, s.previewSchedule),
		unary(s, carillonv1connect.ScheduleServiceListZoneChangesProcedure, single, s.listZoneChanges),

		unary(s, carillonv1connect.WorkerServiceClaimProcedure, single, s.claim),
		unary(s, carillonv1connect.WorkerServiceHeartbeatProcedure, maxBatchBytes, s.heartbeat),
		unary(s, carillonv1connect.WorkerServiceCompleteProcedure, maxBatchBytes, s.complete),
		unary(s, carillonv1connect.WorkerServiceHeartbeatExecutionProcedure, single, s.heartbeatExecution),
		unary(s, carillonv1connect.WorkerServiceCompleteExecutionProcedure, single, s.completeExecution),

		unary(s, carillonv1connect.ExecutionServiceGetExecutionProcedure, single, s.getExecution),
		unary(s, carillonv1connect.ExecutionServiceListExecutionsProcedure, single, s.listExecutions),
		unary(s, carillonv1connect.ExecutionServiceCancelExecutionProcedure, single, s.cancelExecution),
		unary(s, carillonv1connect.ExecutionServiceRequeueDeadLettersProcedure, single, s.requeueDeadLetters),
		unary(s, carillonv1connect.ExecutionServicePurgeDeadLettersProcedure, single, s.purgeDeadLetters),

		unary(s, carillonv1connect.QueueServiceCreateQueueProcedure, single, s.createQueue),
		unary(s, carillonv1connect.QueueServiceGetQueueProcedure, single, s.getQueue),
		unary(s, carillonv1connect.QueueServiceListQueuesProcedure, single, s.listQueues),
		unary(s, carillonv1connect.QueueServiceUpdateQueueProcedure, single, s.updateQueue),
		unary(s, carillonv1connect.QueueServiceDeleteQueueProcedure, single, s.deleteQueue),

		unary(s, carillonv1connect.TenantServiceCreateTenantProcedure, single, s.createTenant),
		unary(s, carillonv1connect.TenantServiceGetTenantProcedure, single, s.getTenant),
		unary(s, carillonv1connect.TenantServiceListTenantsProcedure, single, s.listTenants),
		unary(s, carillonv1connect.TenantServiceUpdateTenantProcedure, single, s.updateTenant),
		unary(s, carillonv1connect.TenantServiceDeleteTenantProcedure, single, s.deleteTenant),

		unary(s, carillonv1connect.PauseServiceCreatePauseRuleProcedure, single, s.createPauseRule),
		unary(s, carillonv1connect.PauseServiceGetPauseRuleProcedure, single, s.getPauseRule),
		unary(s, carillonv1connect.PauseServiceListPauseRulesProcedure, single, s.listPauseRules),
		unary(s, carillonv1connect.PauseServiceDeletePauseRuleProcedure, single, s.deletePauseRule),

		unary(s, carillonv1connect.ClusterServiceGetClusterProcedure, single, s.getCluster),
		unary(s, carillonv1connect.ClusterServiceTransferLeaderProcedure, single, s.transferLeader),
		unary(s, carillonv1connect.ClusterServiceDrainNodeProcedure, single, s.drainNode),
		unary(s, carillonv1connect.ClusterServiceUndrainNodeProcedure, single, s.undrainNode),
		unary(s, carillonv1connect.ClusterServiceRemoveNodeProcedure, single, s.removeNode),
		unary(s, carillonv1connect.ClusterServiceReplaceStoreProcedure, single, s.replaceStore),
		unary(s, carillonv1connect.ClusterServiceVerifyClusterProcedure, single, s.verifyCluster),
		unary(s, carillonv1connect.ClusterServiceGetClockProcedure, single, s.getClock),
		unary(s, carillonv1connect.ClusterServiceAdvanceClockProcedure, single, s.advanceClock),
	}
}

// unary makes a method of a handler. maxBytes bounds the request's message.
func unary[Req, Res any, ReqMsg interface {
	*Req
	proto.Message
}, ResMsg interface {
	*Res
	proto.Message
}](s *server, procedure string, maxBytes int, handle func(context.Context, *Req) (*Res, error)) *method {
	run := observed(s, procedure, handle)
	m := &method{
		procedure:  procedure,
		schema:     methodSchema(procedure),
		maxBytes:   maxBytes,
		newRequest: func() proto.Message { return ReqMsg(new(Req)) },
	}
	m.call = func(ctx context.Context, req proto.Message) (proto.Message, error) {
		res, err := run(ctx, (*Req)(req.(ReqMsg)))
		if err != nil {
			return nil, err
		}
		return ResMsg(res), nil
	}
	m.connect = connect.NewUnaryHandlerSimple(procedure, run,
		connect.WithSchema(m.schema),
		connect.WithReadMaxBytes(maxBytes),
		connect.WithCodec(binaryCodec{}),
		connect.WithCodec(jsonCodec{name: "json"}),
		connect.WithCodec(jsonCodec{name: "json; charset=utf-8"}),
	)
	return m
}

// methodSchema finds the descriptor of "/package.Service/Method". The procedures are generated from the same files.
func methodSchema(procedure string) protoreflect.MethodDescriptor {
	service, name, _ := strings.Cut(strings.TrimPrefix(procedure, "/"), "/")
	for _, file := range apiFiles() {
		if sd := file.Services().ByName(protoreflect.FullName(service).Name()); sd != nil && string(sd.FullName()) == service {
			if md := sd.Methods().ByName(protoreflect.Name(name)); md != nil {
				return md
			}
		}
	}
	panic("no descriptor of " + procedure)
}

// apiFiles are the proto files that declare services.
func apiFiles() []protoreflect.FileDescriptor {
	return []protoreflect.FileDescriptor{
		carillonv1.File_carillon_v1_job_service_proto, carillonv1.File_carillon_v1_worker_service_proto,
		carillonv1.File_carillon_v1_execution_service_proto, carillonv1.File_carillon_v1_queue_service_proto,
		carillonv1.File_carillon_v1_tenant_service_proto, carillonv1.File_carillon_v1_cluster_service_proto,
		carillonv1.File_carillon_v1_pause_service_proto,
		carillonv1.File_carillon_v1_schedule_service_proto,
	}
}
