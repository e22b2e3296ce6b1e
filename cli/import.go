package cli

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/carillon-scheduler/carillon/client"
	carillonv1 "github.com/carillon-scheduler/carillon/proto/carillon/v1"
)

// Bounds of an import: of a line, a batch, and batches on their way; so also of its memory.
const (
	importLineBytes  = 2 << 20
	importBatchItems = 1000
	importBatchBytes = 4 << 20
	importInFlight   = 4
)

func (p *program) importCommand() *cli.Command {
	c := p.calling(cli.Command{
		Name: "import", Usage: "create a job per line of a file of JSON lines", ArgsUsage: "FILE",
		Description: "Each line is a job as in POST /v1/jobs. FILE - is standard input. Running it again creates nothing " +
			"twice and\ngoes on where it stopped: a line is known by its job's id or, without one, by the import's name, its " +
			"number and\nits text. Bad lines are reported by number and left out; the exit code is then 1.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "name", Usage: "`NAME` of the import (default: FILE without its directory)"},
			&cli.IntFlag{Name: "max-errors", Value: 1000, Usage: "give up at so many bad lines; 0: never"},
		},
	}, p.importJobs)
	perRequest(c)
	return c
}

// importing is one import on its way.
type importing struct {
	call  *call
	name  string
	limit int
	bar   *progressbar.ProgressBar

	mu sync.Mutex
	// stderr is written under mu, so that lines do not mix.
	stderr       io.Writer
	created, bad int
}

// importLine is a line that holds a job.
type importLine struct {
	number int
	item   *carillonv1.CreateJobRequest
}

var errTooManyBad = errors.New("too many bad lines")

func (p *program) importJobs(_ context.Context, c *call) error {
	file := c.Args().First()
	in, size := p.stdin, int64(-1)
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return fmt.Errorf("open import: %w", err)
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return fmt.Errorf("open import: %w", err)
		}
		in, size = f, info.Size()
	}
	im := &importing{call: c, name: c.String("name"), limit: c.Int("max-errors"), stderr: p.stderr}
	if im.name == "" {
		im.name = filepath.Base(file)
	}
	im.bar = p.bar(size, "importing", progressbar.OptionShowBytes(true))
	err := im.run(c.Context.Context, in)
	return errors.Join(err, im.report(err))
}

// bar is a progress bar on standard error; nil if that is no terminal.
func (p *program) bar(size int64, doing string, more ...progressbar.Option) *progressbar.ProgressBar {
	if !isTerminal(p.stderr) {
		return nil
	}
	return progressbar.NewOptions64(size, append(more, progressbar.OptionSetWriter(p.stderr),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetDescription(doing))...)
}

// isTerminal reports whether a stream is one; only then may a progress bar be drawn or a question be asked.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// run reads lines into batches and sends several at a time.
func (im *importing) run(ctx context.Context, in io.Reader) error {
	sending, ctx := errgroup.WithContext(ctx)
	sending.SetLimit(importInFlight)
	lines := bufio.NewReaderSize(in, 64<<10)
	var batch []importLine
	size := 0
	flush := func() {
		if full := batch; len(full) > 0 {
			sending.Go(func() error { return im.send(ctx, full) })
		}
		batch, size = nil, 0
	}
	var failed error
	for number := 1; ctx.Err() == nil; number++ {
		line, n, err := readLine(lines)
		im.progress(n)
		if err == io.EOF {
			break
		}
		if err != nil && !errors.Is(err, errLongLine) {
			failed = fmt.Errorf("read line %d: %w", number, err)
			break
		}
		item, err := im.parse(number, line, err)
		if err != nil {
			if failed = im.reject(number, err); failed != nil {
				break
			}
			continue
		}
		if item == nil {
			continue
		}
		if len(batch) >= importBatchItems || size+len(line) > importBatchBytes {
			flush()
		}
		batch, size = append(batch, importLine{number, item}), size+len(line)
	}
	flush()
	if err := sending.Wait(); failed == nil {
		failed = err
	}
	if failed == nil {
		failed = im.call.Context.Context.Err()
	}
	return failed
}

func (im *importing) progress(n int) {
	if im.bar != nil {
		im.mu.Lock()
		defer im.mu.Unlock()
		_ = im.bar.Add(n) // A bar that cannot be drawn is no reason to stop.
	}
}

var errLongLine = fmt.Errorf("line is longer than %d bytes", importLineBytes)

// readLine reads the next line without its end, and how many bytes it took. Of a line that is too long it keeps nothing.
func readLine(r *bufio.Reader) (line []byte, n int, err error) {
	for {
		part, err := r.ReadSlice('\n')
		n += len(part)
		if n <= importLineBytes {
			line = append(line, part...)
		} else {
			line = nil
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err == io.EOF && n == 0:
			return nil, 0, io.EOF
		case err != nil && err != io.EOF:
			return nil, n, err
		case n > importLineBytes:
			return nil, n, errLongLine
		}
		return bytes.TrimSpace(line), n, nil
	}
}

// parse makes a request of a line; nil of an empty one. Its identity is the job's id, or a key made of where it stands and
// what it says.
func (im *importing) parse(number int, line []byte, err error) (*carillonv1.CreateJobRequest, error) {
	if err != nil || len(line) == 0 {
		return nil, err
	}
	spec := new(carillonv1.JobSpec)
	if err := protojson.Unmarshal(line, spec); err != nil {
		return nil, errors.New(plainJSONError(err))
	}
	if spec.GetTenant() == "" {
		spec.Tenant = im.call.tenant
	}
	item := &carillonv1.CreateJobRequest{Job: spec}
	if spec.GetId() == "" {
		hash := sha256.New()
		fmt.Fprintf(hash, "carillon import 1\n%q\n%d\n%s", im.name, number, line)
		item.IdempotencyKey = "import-" + strings.ToLower(
			base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(hash.Sum(nil)[:20]))
	}
	return item, nil
}

// plainJSONError is the decoder's message without what says nothing here and the space that varies from build to build.
func plainJSONError(err error) string {
	text := strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: ")
	if at, said, ok := strings.Cut(text, "): "); ok && strings.HasPrefix(at, "(line 1:") {
		return fmt.Sprintf("column %s: %s", strings.TrimPrefix(at, "(line 1:"), said)
	}
	return text
}

// reject reports a bad line; it fails if there are too many.
func (im *importing) reject(number int, err error) error {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.bad++
	if _, err := fmt.Fprintf(im.stderr, "line %d: %s\n", number, err); err != nil {
		return err
	}
	if im.limit > 0 && im.bad >= im.limit {
		return errTooManyBad
	}
	return nil
}

// send creates the jobs of a batch. What the server cannot take now is sent again until the timeout has passed without
// any progress.
func (im *importing) send(ctx context.Context, batch []importLine) error {
	timeout := im.call.Duration("timeout")
	for since := time.Now(); len(batch) > 0; {
		left, wait, err := im.sendOnce(ctx, batch)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errTooManyBad):
			return err
		case len(left) < len(batch) && (err == nil || isTemporary(err)):
			since = time.Now()
		case err != nil && (!isTemporary(err) || time.Since(since) > timeout):
			return fmt.Errorf("import lines %d to %d: %w", batch[0].number, batch[len(batch)-1].number, err)
		}
		batch = left
		if len(batch) > 0 {
			pause(ctx, max(wait, 100*time.Millisecond))
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func isTemporary(err error) bool {
	return errors.Is(err, client.ErrUnavailable) || errors.Is(err, client.ErrOverloaded)
}

// sendOnce returns the lines that must be sent again, how long to wait before, and why.
func (im *importing) sendOnce(
	ctx context.Context, batch []importLine,
) (left []importLine, wait time.Duration, last error) {
	req := &carillonv1.BatchCreateJobsRequest{Items: make([]*carillonv1.CreateJobRequest, len(batch))}
	for i, line := range batch {
		req.Items[i] = line.item
	}
	results, err := im.call.client.BatchCreateJobs(ctx, req)
	if err != nil {
		return batch, 0, err
	}
	for i, result := range results {
		var failed *client.Error
		switch {
		case result.Err == nil:
			im.mu.Lock()
			im.created++
			im.mu.Unlock()
		case isTemporary(result.Err):
			left, last = append(left, batch[i]), result.Err
			if errors.As(result.Err, &failed) {
				wait = max(wait, failed.RetryAfter)
			}
		default:
			if err := im.reject(batch[i].number, result.Err); err != nil {
				return nil, 0, err
			}
		}
	}
	return left, wait, last
}

// report prints the counts; bad lines are an error of their own.
func (im *importing) report(err error) error {
	if im.bar != nil {
		_ = im.bar.Finish() // As above.
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	if im.call.print.json {
		_, werr := fmt.Fprintf(im.call.print.w, "{\n  \"accepted\": %d,\n  \"bad\": %d\n}\n", im.created, im.bad)
		if werr != nil {
			return werr
		}
	} else if werr := im.call.print.table([][]string{
		{"accepted", fmt.Sprint(im.created)}, {"bad", fmt.Sprint(im.bad)},
	}); werr != nil {
		return werr
	}
	if im.bad > 0 && err == nil {
		return fmt.Errorf("%d bad lines", im.bad)
	}
	return nil
}
