package manifest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Stdin is the path of standard input.
const Stdin = "-"

// extensions are the names' ends by which a directory's files are taken.
var extensions = []string{".yaml", ".yml", ".json"}

// Read reads all jobs of files, of directories with all that is below them, and of standard input. A job without a tenant
// gets the one given. What is wrong in the files is one error, Faults; then there are no jobs.
func Read(paths []string, stdin io.Reader, tenant string) ([]Job, error) {
	var all []Job
	var faults Faults
	for _, path := range paths {
		files, err := filesOf(path)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			jobs, wrong, err := readFile(file, stdin)
			if err != nil {
				return nil, err
			}
			all, faults = append(all, jobs...), append(faults, wrong...)
			if len(all) > maxJobs {
				return nil, fmt.Errorf("read jobs: more than %d in the files", maxJobs)
			}
		}
	}
	for _, job := range all {
		if job.Spec.GetTenant() == "" {
			job.Spec.Tenant = tenant
		}
	}
	if faults = append(faults, twice(all)...); len(faults) > 0 {
		return nil, faults
	}
	return all, nil
}

// twice finds jobs that stand in the files more than once.
func twice(jobs []Job) (faults Faults) {
	type name struct{ tenant, id string }
	first := make(map[name]Job, len(jobs))
	for _, job := range jobs {
		at := name{job.Spec.GetTenant(), job.Spec.GetId()}
		if other, ok := first[at]; ok && at.id != "" {
			faults = append(faults, Fault{
				File: job.File, Line: job.Line, Field: "id",
				Text: fmt.Sprintf("%q stands in %s:%d already", at.id, other.File, other.Line),
			})
			continue
		}
		first[at] = job
	}
	return faults
}

// filesOf is the file of a path, or those of a directory in the order of their names. What begins with a dot is left out.
func filesOf(path string) (files []string, err error) {
	if path == Stdin {
		return []string{path}, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read jobs: %w", err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	err = filepath.WalkDir(path, func(at string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case at != path && strings.HasPrefix(entry.Name(), "."):
			if entry.IsDir() {
				return filepath.SkipDir
			}
		case !entry.IsDir() && slices.Contains(extensions, strings.ToLower(filepath.Ext(at))):
			files = append(files, at)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read jobs: %w", err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("read jobs: %s has no files that end in %s", path, strings.Join(extensions, ", "))
	}
	return files, nil
}

// readFile reads the jobs of one file.
func readFile(path string, stdin io.Reader) ([]Job, Faults, error) {
	body, err := readAll(path, stdin, maxFileBytes)
	if err != nil {
		return nil, nil, err
	}
	d := &decoder{file: path, readFile: func(name string) ([]byte, error) { return readPayload(path, name) }}
	docs, err := documents(body)
	var syntax *syntaxError
	switch {
	case errors.As(err, &syntax):
		d.fault(syntax.line, "", "%s", syntax.text)
	case err != nil:
		return nil, nil, fmt.Errorf("read %s: %w", path, err)
	}
	var jobs []Job
	for _, doc := range docs {
		for _, n := range d.jobsOf(doc) {
			jobs = append(jobs, d.job(n))
		}
	}
	slices.SortStableFunc(d.faults, func(a, b Fault) int { return a.Line - b.Line })
	return jobs, d.faults, nil
}

// jobsOf are the nodes of a document's jobs: itself, or those in its one field "jobs".
func (d *decoder) jobsOf(doc *node) []*node {
	jobs := doc.get("jobs")
	if jobs == nil {
		return []*node{doc}
	}
	switch {
	case len(doc.keys) > 1:
		d.fault(doc.line, "jobs", "stands beside other fields: a document is a job or a list of them")
	case jobs.kind != list:
		d.fault(jobs.line, "jobs", "is %s; it must be a list of jobs", jobs)
	default:
		return jobs.items
	}
	return nil
}

// readPayload reads a payload file, whose path is relative to the directory of the file that names it.
func readPayload(file, name string) ([]byte, error) {
	if !filepath.IsAbs(name) && file != Stdin {
		name = filepath.Join(filepath.Dir(file), name)
	}
	return readAll(name, nil, maxPayloadFile)
}

func readAll(path string, stdin io.Reader, limit int64) ([]byte, error) {
	in := stdin
	if path != Stdin || stdin == nil {
		file, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("read file: %w", err)
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil {
			return nil, fmt.Errorf("read file: %w", err)
		}
		if info.Size() > limit {
			return nil, tooLong(path, limit)
		}
		in = file
	}
	// What is no file has no size: its end is looked for up to the limit.
	body, err := io.ReadAll(io.LimitReader(in, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if int64(len(body)) > limit {
		return nil, tooLong(path, limit)
	}
	return body, nil
}

func tooLong(path string, limit int64) error {
	return fmt.Errorf("read %s: it is longer than %d bytes", path, limit)
}
