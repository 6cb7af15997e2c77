// The workloads of the benchmarks with nats.go. benchmarks/README.md describes how this program is called.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/nats-io/nats.go"
)

// A work connects nothing itself: it moves the messages of one part and tells what it moved.
type work func(nc *nats.Conn, job *Job, part *Part) error

var works = map[string]work{
	"ordered":   ordered,
	"callback":  callback,
	"messages":  messages,
	"fetch":     fetch,
	"next":      next,
	"publisher": publisher,
	"publish":   publish,

	"core-publish":   corePublish,
	"core-subscribe": coreSubscribe,
	"core-request":   coreRequest,
	"core-requests":  coreRequests,
}

func main() {
	if len(os.Args) != 2 {
		fail(fmt.Errorf("usage: %s --version | JOB", os.Args[0]))
	}
	if os.Args[1] == "--version" {
		show(map[string]any{"version": nats.Version, "kinds": kinds()})
		return
	}
	figures, err := run(os.Args[1])
	if err != nil {
		fail(err)
	}
	show(figures)
}

// run does the warm-up and the measured part on one connection.
func run(text string) ([]*Figures, error) {
	job, err := parseJob(text)
	if err != nil {
		return nil, err
	}
	do, ok := works[job.Kind]
	if !ok {
		return nil, fmt.Errorf("no workload is called %q", job.Kind)
	}
	nc, err := connect(job)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	var results []*Figures
	for _, part := range job.parts() {
		part.begin()
		if err := do(nc, job, part); err != nil {
			return nil, err
		}
		results = append(results, part.figures)
	}
	// Acks may still be in the buffer of the connection. The server checks them after the run.
	return results, nc.Flush()
}

func connect(job *Job) (*nats.Conn, error) {
	if job.CA == "" {
		return nats.Connect(job.url())
	}
	return nats.Connect(job.url(), nats.RootCAs(job.CA))
}

func kinds() []string {
	var names []string
	for name := range works {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func show(value any) {
	if err := json.NewEncoder(os.Stdout).Encode(value); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
