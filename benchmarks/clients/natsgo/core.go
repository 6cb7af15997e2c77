package main

import (
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// The other side is benchmarks/partner.py.
const (
	begin  = "bench.begin"
	more   = "bench.more"
	echo   = "bench.echo"
	credit = 5_000 // messages after which more are asked for
	tasks  = 1_000 // requests at once
)

func corePublish(nc *nats.Conn, job *Job, part *Part) error {
	payload := job.payload()
	for range part.count {
		if err := nc.Publish(job.Subject, payload); err != nil {
			return err
		}
	}
	if err := nc.Flush(); err != nil {
		return err
	}
	part.done(part.count, uint64(part.last))
	return nil
}

func coreSubscribe(nc *nats.Conn, job *Job, part *Part) error {
	sub, err := nc.SubscribeSync(job.Subject)
	if err != nil {
		return err
	}
	if err := nc.Publish(begin, []byte(strconv.Itoa(part.count))); err != nil {
		return err
	}
	for seen := 1; seen <= part.count; seen++ {
		if _, err := sub.NextMsg(wait); err != nil {
			return err
		}
		if seen%credit == 0 {
			if err := nc.Publish(more, nil); err != nil {
				return err
			}
		}
	}
	part.done(part.count, uint64(part.last))
	return sub.Unsubscribe()
}

func coreRequest(nc *nats.Conn, job *Job, part *Part) error {
	payload := job.payload()
	for range part.count {
		began := time.Now()
		if _, err := nc.Request(echo, payload, wait); err != nil {
			return err
		}
		part.time(began)
	}
	part.done(part.count, uint64(part.last))
	return nil
}

func coreRequests(nc *nats.Conn, job *Job, part *Part) error {
	payload := job.payload()
	failures := make(chan error, tasks)
	var group sync.WaitGroup
	for number := range tasks {
		group.Add(1)
		go func() {
			defer group.Done()
			for i := number; i < part.count; i += tasks {
				if _, err := nc.Request(echo, payload, wait); err != nil {
					failures <- err
					return
				}
			}
		}()
	}
	group.Wait()
	select {
	case err := <-failures:
		return err
	default:
		part.done(part.count, uint64(part.last))
		return nil
	}
}
