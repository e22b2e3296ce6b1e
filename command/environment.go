package command

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/client"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// prefix is what the names of our variables begin with. None of them is inherited: what stands there is of this execution.
const prefix = "CARILLON_"

// environment is base, and what a program is told of its execution.
func environment(base []string, e *client.Execution, address string) []string {
	env := slices.DeleteFunc(slices.Clone(base), func(v string) bool { return strings.HasPrefix(v, prefix) })
	set := func(name, value string) { env = append(env, prefix+name+"="+value) }
	set("ADDR", address)
	set("EXECUTION_ID", e.ID)
	set("JOB_ID", e.JobID)
	set("JOB_VERSION", strconv.FormatUint(e.JobVersion, 10))
	set("TENANT", e.Tenant)
	set("QUEUE", e.Queue)
	set("KIND", kind(e.Kind))
	set("PRIORITY", strconv.FormatUint(uint64(e.Priority), 10))
	set("ATTEMPT", strconv.FormatUint(uint64(e.Attempt), 10))
	set("MAX_ATTEMPTS", strconv.FormatUint(uint64(e.MaxAttempts), 10))
	set("NOMINAL_TIME", e.NominalTime.UTC().Format(time.RFC3339Nano))
	set("FENCING", strconv.FormatUint(e.FencingNumber, 10))
	set("CONTENT_TYPE", e.ContentType)
	set("PAYLOAD_REF", e.PayloadRef)
	set("HEADERS", headersJSON(e.Headers))
	for name, value := range headerVariables(e.Headers) {
		set("HEADER_"+name, value)
	}
	return env
}

// kind is where an execution comes from: schedule, trigger or backfill.
func kind(k carillonv1.ExecutionKind) string {
	return strings.ToLower(strings.TrimPrefix(k.String(), "EXECUTION_KIND_"))
}

// headersJSON is all headers as one object, its keys in order.
func headersJSON(headers map[string]string) string {
	if headers == nil {
		headers = map[string]string{}
	}
	body, err := json.Marshal(headers)
	if err != nil {
		panic(err) // strings can be written
	}
	return string(body)
}

// headerVariables are headers by what their names become in an environment: capital letters, digits and "_". Headers whose
// names become the same are left out.
func headerVariables(headers map[string]string) map[string]string {
	variables := make(map[string]string, len(headers))
	seen := make(map[string]int, len(headers))
	for name, value := range headers {
		variable := strings.Map(func(r rune) rune {
			switch {
			case r >= 'a' && r <= 'z':
				return r - 'a' + 'A'
			case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
				return r
			}
			return '_'
		}, name)
		variables[variable] = value
		seen[variable]++
	}
	maps.DeleteFunc(variables, func(variable, _ string) bool { return seen[variable] > 1 })
	return variables
}
