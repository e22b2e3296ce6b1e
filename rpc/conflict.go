package rpc

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/carillon-scheduler/carillon/fsm"
	storagev1 "github.com/carillon-scheduler/carillon/proto/carillon/storage/v1"
)

// onlyIdentityDiffers says whether the state machine found nothing that differs in what it compares. It does not read the
// execution of a one-shot that has fired, where the rest of the job stands by then.
func onlyIdentityDiffers(r *fsm.Refusal) bool {
	return slices.Equal(r.Fields, []string{"idempotency_key"})
}

// createConflict is the refusal of a create whose job exists from another request, as the caller sees it. The key is no
// part of the body, so that it never is what differs.
func (s *server) createConflict(ctx context.Context, create *storagev1.CreateJob, refusal *fsm.Refusal) error {
	if !onlyIdentityDiffers(refusal) {
		return refusalError(ofJob(refusal))
	}
	var fields []string
	changed := false
	err := s.backend.View(ctx, s.backend.ShardOf(create.Tenant, create.JobId), false, func(r fsm.Reader) error {
		view, ok := fsm.GetJob(r, create.Tenant, create.JobId)
		changed = ok && view.Job.Version > 1
		if ok && view.Execution != nil {
			fields = templateDifference(create.Template, view.Execution.Template, view.Payload)
		}
		return nil
	})
	if err != nil {
		return err
	}
	conflict := existsFromAnother(create.JobId)
	switch conflict.Fields = fields; {
	case len(fields) > 0:
	case changed:
		conflict.Message += ", and was changed since"
	default:
		conflict.Message += "; what was different in it is not kept any more"
	}
	return refusalError(conflict)
}

// existsFromAnother is a refusal that does not say what differs: for batches, where looking would cost a read an item.
func existsFromAnother(jobID string) *fsm.Refusal {
	return &fsm.Refusal{Code: fsm.AlreadyExists, Message: fmt.Sprintf("job %q exists from another request", jobID)}
}

// templateDifference names the fields in which a request's template differs from a stored one, whose payload may stand
// apart.
func templateDifference(want, have *storagev1.Template, payload []byte) (fields []string) {
	have = have.CloneVT()
	if have.BlobVersion != 0 && payload == nil {
		payload = want.Payload // it has gone: nothing can be said about it
	}
	have.Payload, have.BlobVersion, have.BlobSize = payload, 0, 0
	a, b := want.ProtoReflect(), have.ProtoReflect()
	all := a.Descriptor().Fields()
	for i := range all.Len() {
		if field := all.Get(i); !a.Get(field).Equal(b.Get(field)) {
			fields = append(fields, publicName(field))
		}
	}
	return fields
}

// publicName is the API's name of a field of the records, which have the unit in theirs.
func publicName(field protoreflect.FieldDescriptor) string {
	return strings.TrimSuffix(string(field.Name()), "_ms")
}
