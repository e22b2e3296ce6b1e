package client_test

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/carillon-scheduler/carillon/client"
)

// Workers make these calls themselves.
const workers = "carillon.v1.WorkerService"

func TestEveryCallOfTheAPIIsAMethodAndInTheDocs(t *testing.T) {
	body, err := os.ReadFile("../docs/client.md")
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	protoregistry.GlobalFiles.RangeFilesByPackage("carillon.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				name := string(service.Methods().Get(j).Name())
				calls++
				if _, ok := reflect.TypeFor[*client.Client]().MethodByName(name); !ok && service.FullName() != workers {
					t.Errorf("%s is no method of the client", name)
				}
				if !strings.Contains(string(body), "`"+name+"`") {
					t.Errorf("docs/client.md does not have `%s`", name)
				}
			}
		}
		return true
	})
	if calls < 30 {
		t.Errorf("only %d calls found", calls)
	}
}
