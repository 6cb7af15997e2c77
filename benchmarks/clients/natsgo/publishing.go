package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func publisher(nc *nats.Conn, job *Job, part *Part) error {
	failures := make(chan error, 1)
	failed := func(_ jetstream.JetStream, _ *nats.Msg, err error) {
		select {
		case failures <- err:
		default: // The first one is reported.
		}
	}
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(job.Window),
		jetstream.WithPublishAsyncErrHandler(failed))
	if err != nil {
		return err
	}
	payload := job.payload()
	var future jetstream.PubAckFuture
	for range part.count {
		// The window may be full for longer than the 200 ms that nats.go waits by default.
		if future, err = js.PublishMsgAsync(job.message(payload), jetstream.WithStallWait(wait)); err != nil {
			return err
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(wait):
		return errors.New("not every message was acked in time")
	}
	select {
	case err := <-failures:
		return fmt.Errorf("a message was not stored: %w", err)
	case ack := <-future.Ok():
		part.done(part.count, ack.Sequence)
		return nil
	}
}

func publish(nc *nats.Conn, job *Job, part *Part) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	payload := job.payload()
	var ack *jetstream.PubAck
	for range part.count {
		began := time.Now()
		if ack, err = js.PublishMsg(context.Background(), job.message(payload)); err != nil {
			return err
		}
		part.time(began)
	}
	part.done(part.count, ack.Sequence)
	return nil
}
