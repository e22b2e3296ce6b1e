package integration

import (
	"net/http"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/carillon-scheduler/carillon/client"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// commands is how each call is made on the command line.
var commands = map[protoreflect.Name]string{
	"CreateJob": "jobs create", "BatchCreateJobs": "jobs import", "GetJob": "jobs get", "ListJobs": "jobs list",
	"UpdateJob": "jobs update", "PutJob": "jobs put", "PauseJob": "jobs pause", "ResumeJob": "jobs resume", "DeleteJob": "jobs delete",
	"TriggerJob": "jobs trigger", "GetJobHistory": "jobs history", "ListOccurrences": "jobs occurrences",
	"BackfillJob": "jobs backfill", "CancelBackfill": "jobs cancel-backfill",
	"PreviewSchedule": "schedule preview", "PreviewResume": "jobs resume", "ListZoneChanges": "schedule zone-changes",
	"GetExecution": "executions get", "ListExecutions": "executions list", "CancelExecution": "executions cancel",
	"RequeueDeadLetters": "dead-letters requeue", "PurgeDeadLetters": "dead-letters purge",
	"CreateQueue": "queues create", "GetQueue": "queues get", "ListQueues": "queues list", "UpdateQueue": "queues update",
	"DeleteQueue":  "queues delete",
	"CreateTenant": "tenants create", "GetTenant": "tenants get", "ListTenants": "tenants list",
	"UpdateTenant": "tenants update", "DeleteTenant": "tenants delete",
	"CreatePauseRule": "pause create", "GetPauseRule": "pause get", "ListPauseRules": "pause list", "DeletePauseRule": "pause delete",
	"GetCluster": "cluster status", "TransferLeader": "cluster transfer", "DrainNode": "cluster drain",
	"UndrainNode": "cluster undrain", "RemoveNode": "cluster remove-node", "ReplaceStore": "cluster replace-store",
	"VerifyCluster": "cluster verify", "GetClock": "clock show", "AdvanceClock": "clock advance",
}

// workerCalls have no command, and no client method of their own: a worker is a program, and client.Worker makes them.
// docs/cli.md says so.
var workerCalls = map[protoreflect.Name]bool{
	"Claim": true, "Heartbeat": true, "Complete": true, "HeartbeatExecution": true, "CompleteExecution": true,
}

// TestEveryCallIsReachable walks the proto: each call has a REST route that is served, a command, a method of the client
// and a line in the docs.
func TestEveryCallIsReachable(t *testing.T) {
	t.Parallel()
	s := startServer(t, "", "--shards", "2")
	api := readDoc(t, "../docs/api.md")
	cli := readDoc(t, "../docs/cli.md")
	methods := 0
	for _, m := range callsOf(t) {
		methods++
		name := m.Name()
		verb, path := restOf(t, m)
		if line := "| " + string(name) + " | `" + verb + " " + path + "` |"; !strings.Contains(api, line) {
			t.Errorf("docs/api.md has no line %q", line)
		}
		s.isServed(verb, path)
		if workerCalls[name] {
			if !strings.Contains(cli, "WorkerService") {
				t.Errorf("docs/cli.md does not say that WorkerService has no commands")
			}
			continue
		}
		if _, ok := reflect.TypeFor[*client.Client]().MethodByName(string(name)); !ok {
			t.Errorf("client.Client has no method %s", name)
		}
		command, ok := commands[name]
		if !ok {
			t.Errorf("%s has no command", name)
			continue
		}
		if out, err := exec.Command(binary, append(strings.Fields(command), "--help")...).CombinedOutput(); err != nil ||
			!strings.Contains(string(out), "carillon "+command) {
			t.Errorf("%s: carillon %s --help: %v\n%s", name, command, err, out)
		}
		if !strings.Contains(cli, "`carillon "+command) {
			t.Errorf("docs/cli.md has no line for %q", command)
		}
	}
	if methods != len(commands)+len(workerCalls) {
		t.Errorf("%d calls, and %d are known here: a call has gone", methods, len(commands)+len(workerCalls))
	}
}

// callsOf is every call of the API.
func callsOf(t *testing.T) (calls []protoreflect.MethodDescriptor) {
	t.Helper()
	pkg := (&carillonv1.Job{}).ProtoReflect().Descriptor().ParentFile().Package()
	protoregistry.GlobalFiles.RangeFilesByPackage(pkg, func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for k := range service.Methods().Len() {
				calls = append(calls, service.Methods().Get(k))
			}
		}
		return true
	})
	return calls
}

// restOf is a call's REST binding.
func restOf(t *testing.T, m protoreflect.MethodDescriptor) (verb, path string) {
	t.Helper()
	rule, ok := proto.GetExtension(m.Options(), annotations.E_Http).(*annotations.HttpRule)
	if !ok {
		t.Fatalf("%s has no REST route", m.FullName())
	}
	switch pattern := rule.GetPattern().(type) {
	case *annotations.HttpRule_Get:
		return http.MethodGet, pattern.Get
	case *annotations.HttpRule_Post:
		return http.MethodPost, pattern.Post
	case *annotations.HttpRule_Put:
		return http.MethodPut, pattern.Put
	case *annotations.HttpRule_Patch:
		return http.MethodPatch, pattern.Patch
	case *annotations.HttpRule_Delete:
		return http.MethodDelete, pattern.Delete
	}
	t.Fatalf("%s has the REST route %v", m.FullName(), rule)
	return "", ""
}

// isServed asks for something that does not exist: the answer must be the handler's and not the router's.
func (s *server) isServed(verb, path string) {
	s.t.Helper()
	path = strings.NewReplacer("{id}", "nothing", "{name}", "nothing", "{node}", "nothing").Replace(path)
	body := []byte("{}")
	if verb == http.MethodGet || verb == http.MethodDelete {
		body = nil
	}
	status, answer := s.send(verb, path, "application/json", body)
	if status == http.StatusMethodNotAllowed || status >= 500 || strings.Contains(answer, "no such path") {
		s.t.Errorf("%s %s: %d %s", verb, path, status, answer)
	}
}

func readDoc(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
