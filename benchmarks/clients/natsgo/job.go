package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"strconv"

	"github.com/nats-io/nats.go"
)

// The headers of a message, and the one that readers read, as in benchmarks/job.py.
const readHeader = "Trace-Id"

var headers = nats.Header{
	"Content-Type": {"application/json"},
	"Trace-Id":     {"4bf92f3577b34da6a3ce929d0e0e4736"},
	"Tenant":       {"blue"},
}

// Job is one run: benchmarks.job.Job, without the fields that concern Python.
type Job struct {
	Kind      string    `json:"kind"`
	Count     int       `json:"count"`
	Warm      int       `json:"warm"`
	Stream    string    `json:"stream"`
	Subject   string    `json:"subject"`
	Host      string    `json:"host"`
	Port      int       `json:"port"`
	Size      int       `json:"size"`
	Headers   bool      `json:"headers"`
	Last      int       `json:"last"`
	Consumers [2]string `json:"consumers"`
	Batch     int       `json:"batch"`
	Window    int       `json:"window"`
	CA        string    `json:"ca"`
	Server    int       `json:"server"` // its process, whose CPU is measured as well
}

func parseJob(text string) (*Job, error) {
	job := &Job{}
	if err := json.Unmarshal([]byte(text), job); err != nil {
		return nil, fmt.Errorf("the job is not valid: %w", err)
	}
	return job, nil
}

func (job *Job) url() string {
	scheme := "nats"
	if job.CA != "" {
		scheme = "tls"
	}
	return scheme + "://" + net.JoinHostPort(job.Host, strconv.Itoa(job.Port))
}

// message returns a new message with the job's payload, as an application makes one for each publish.
func (job *Job) message(payload []byte) *nats.Msg {
	msg := &nats.Msg{Subject: job.Subject, Data: payload}
	if job.Headers {
		msg.Header = headers
	}
	return msg
}

func (job *Job) payload() []byte {
	return bytes.Repeat([]byte("x"), job.Size)
}

// parts returns the warm-up and the measured part, as benchmarks.job.Meter.parts does.
func (job *Job) parts() []*Part {
	warm := &Part{count: job.Warm, consumer: job.Consumers[0], last: job.Last, server: job.Server}
	measured := &Part{count: job.Count, consumer: job.Consumers[1], last: job.Last, server: job.Server}
	if job.Last == 0 {
		// The stream begins empty, and the job publishes.
		warm.last, measured.last = job.Warm, job.Warm+job.Count
	}
	return []*Part{warm, measured}
}
