// Package manifest is jobs as files: it reads, writes and compares them. A file is YAML or JSON; a document in it is one job,
// or {"jobs": [...]}. Fields have the names that JSON has in the API (JobSpec), durations are written like 90s, 24h or 7d,
// rules by their short names, and a payload as text, JSON, base64 or a file. It is strict: what it does not know or cannot
// read is a fault with file, line and field. It calls no server: whether a schedule makes sense is for that to say. Package
// cli calls it. It has no goroutines and no state.
package manifest

import (
	"fmt"
	"strings"

	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// Bounds of what is read.
const (
	maxFileBytes = 32 << 20
	maxJobs      = 100_000
	// maxDepth is how deep lists and mappings stand inside each other; that of a job is 5, a payload may have more.
	maxDepth = 100
	// maxNodes bounds a document after its aliases have been replaced by what they stand for.
	maxNodes = 2_000_000
	// maxPayloadFile is more than any server takes; the server names its limit.
	maxPayloadFile = 2 << 20
	// maxShownFaults is how many faults an error tells of.
	maxShownFaults = 20
)

// Job is a job as a file has it.
type Job struct {
	// Spec is what the file says, without any defaults.
	Spec *carillonv1.JobSpec
	// Version is the one that the job must have to be changed; 0: any.
	Version uint64
	// File and Line are where it stands. Standard input is "-".
	File string
	Line int
}

// Fault is what is wrong in a file.
type Fault struct {
	File string
	// Line is 0 if the file as a whole is at fault.
	Line int
	// Field is the path of the field, like schedule.cron.lines[2]; empty if none is at fault.
	Field string
	Text  string
}

func (f Fault) String() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d", f.Line)
	}
	b.WriteString(": ")
	if f.Field != "" {
		b.WriteString(f.Field + " ")
	}
	return b.String() + f.Text
}

// Faults are all that is wrong in the files.
type Faults []Fault

// Error is a line per fault, at most twenty.
func (f Faults) Error() string {
	var lines []string
	for _, fault := range f[:min(len(f), maxShownFaults)] {
		lines = append(lines, fault.String())
	}
	if more := len(f) - len(lines); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "\n")
}
