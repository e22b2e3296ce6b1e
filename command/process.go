package command

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// leftover is how long the pipes of a program that has ended are read when something that left its group holds them open.
const leftover = time.Second

// process is a running program, which leads a process group of its own, and what it writes. One goroutine starts and ends
// it.
type process struct {
	cmd    *exec.Cmd
	pipes  [2]*os.File
	result result
	last   lastWords
	// reading are the goroutines that read the pipes; drained is closed when they have ended, and then what they read may
	// be looked at.
	reading sync.WaitGroup
	drained chan struct{}
	faults  [3]error
	reaped
}

// start runs cmd with stdin, and calls each with every line that it writes to standard error.
func start(cmd *exec.Cmd, stdin []byte, each func(line string)) (*process, error) {
	p := &process{cmd: cmd, drained: make(chan struct{})}
	stdout, writeOut, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	stderr, writeErr, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, stdout.Close(), writeOut.Close())
	}
	p.pipes = [2]*os.File{stdout, stderr}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), writeOut, writeErr
	cmd.SysProcAttr, cmd.WaitDelay = ownGroup(), leftover
	err = cmd.Start()
	p.faults[2] = errors.Join(writeOut.Close(), writeErr.Close()) // they are the program's now
	if err != nil {
		return nil, errors.Join(err, p.faults[2], stdout.Close(), stderr.Close())
	}
	p.reading.Go(func() { _, p.faults[0] = io.Copy(&p.result, stdout) })
	p.reading.Go(func() {
		p.faults[1] = readLines(stderr, func(line []byte) {
			p.last.add(line)
			each(string(line))
		})
	})
	return p, nil
}

// end waits until the program has ended, which it is asked to once stop is done, and leaves nothing of its group. The error
// is of the pipes: how the program ended stands in cmd.ProcessState.
func (p *process) end(stop context.Context, killAfter time.Duration) error {
	var waiting sync.WaitGroup
	defer waiting.Wait()
	exited := make(chan struct{})
	waiting.Go(func() {
		p.awaitExit(p.cmd)
		close(exited)
	})
	waiting.Go(func() {
		p.reading.Wait()
		close(p.drained)
	})
	select {
	case <-exited:
	case <-stop.Done():
		p.terminate(exited, killAfter)
	}
	// Also of one that has ended: what it left behind.
	killGroup(p.cmd)
	<-exited
	err := p.drain()
	var exit *exec.ExitError
	if waited := p.wait(p.cmd); !errors.As(waited, &exit) {
		err = errors.Join(err, waited)
	}
	return err
}

// terminate asks the group to end and gives it time. Those who outlive the leader are known by the pipes they hold.
func (p *process) terminate(exited <-chan struct{}, killAfter time.Duration) {
	terminateGroup(p.cmd)
	timer := time.NewTimer(killAfter)
	defer timer.Stop()
	for _, gone := range []<-chan struct{}{exited, p.drained} {
		select {
		case <-gone:
		case <-timer.C:
			return
		}
	}
}

// drain reads what is left in the pipes and closes them.
func (p *process) drain() error {
	timer := time.NewTimer(leftover)
	defer timer.Stop()
	var held error
	select {
	case <-p.drained:
	case <-timer.C:
		held = errors.New("a process that left the group holds them open")
	}
	closed := errors.Join(p.pipes[0].Close(), p.pipes[1].Close()) // ends the reading
	<-p.drained
	if held != nil {
		return held
	}
	return errors.Join(append(p.faults[:], closed)...)
}
