package main

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	wait  = 20 * time.Second  // until one message arrives, or is acked
	limit = 100 * time.Second // for one part of a run
)

var errNoHeader = errors.New("a message lacks its header")

func ordered(nc *nats.Conn, job *Job, part *Part) error {
	js, err := nc.JetStream()
	if err != nil {
		return err
	}
	sub, err := js.SubscribeSync(job.Subject, nats.OrderedConsumer(), nats.StartSequence(part.start()))
	if err != nil {
		return err
	}
	var msg *nats.Msg
	for range part.count {
		if msg, err = sub.NextMsg(wait); err != nil {
			return err
		}
		if job.Headers && msg.Header.Get(readHeader) == "" {
			return errNoHeader
		}
	}
	meta, err := msg.Metadata()
	if err != nil {
		return err
	}
	part.done(part.count, meta.Sequence.Stream)
	return sub.Unsubscribe()
}

func callback(nc *nats.Conn, job *Job, part *Part) error {
	js, err := nc.JetStream()
	if err != nil {
		return err
	}
	seen, bare := 0, 0
	last := make(chan *nats.Msg, 1)
	handle := func(msg *nats.Msg) {
		if job.Headers && msg.Header.Get(readHeader) == "" {
			bare++
		}
		if seen++; seen == part.count {
			last <- msg
		}
	}
	sub, err := js.Subscribe(job.Subject, handle, nats.StartSequence(part.start()), nats.AckNone(),
		nats.EnableFlowControl(), nats.IdleHeartbeat(5*time.Second))
	if err != nil {
		return err
	}
	var msg *nats.Msg
	select {
	case msg = <-last:
	case <-time.After(limit):
		return errors.New("not every message arrived in time")
	}
	if bare > 0 {
		return errNoHeader
	}
	meta, err := msg.Metadata()
	if err != nil {
		return err
	}
	part.done(part.count, meta.Sequence.Stream)
	return sub.Unsubscribe()
}

func messages(nc *nats.Conn, job *Job, part *Part) error {
	consumer, err := bind(nc, job, part)
	if err != nil {
		return err
	}
	iterator, err := consumer.Messages(jetstream.PullMaxMessages(job.Window))
	if err != nil {
		return err
	}
	defer iterator.Stop()
	var msg jetstream.Msg
	for range part.count {
		if msg, err = iterator.Next(); err != nil {
			return err
		}
		if job.Headers && msg.Headers().Get(readHeader) == "" {
			return errNoHeader
		}
		if err = msg.Ack(); err != nil {
			return err
		}
	}
	return finish(part, part.count, msg)
}

func fetch(nc *nats.Conn, job *Job, part *Part) error {
	consumer, err := bind(nc, job, part)
	if err != nil {
		return err
	}
	var msg jetstream.Msg
	seen := 0
	for seen < part.count {
		batch, err := consumer.Fetch(job.Batch)
		if err != nil {
			return err
		}
		for msg = range batch.Messages() {
			seen++
		}
		if err := batch.Error(); err != nil {
			return err
		}
	}
	return finish(part, seen, msg)
}

func next(nc *nats.Conn, job *Job, part *Part) error {
	consumer, err := bind(nc, job, part)
	if err != nil {
		return err
	}
	var msg jetstream.Msg
	for range part.count {
		began := time.Now()
		if msg, err = consumer.Next(); err != nil {
			return err
		}
		part.time(began)
	}
	return finish(part, part.count, msg)
}

// bind looks up the pull consumer of the part.
func bind(nc *nats.Conn, job *Job, part *Part) (jetstream.Consumer, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	return js.Consumer(ctx, job.Stream, part.consumer)
}

func finish(part *Part, seen int, last jetstream.Msg) error {
	meta, err := last.Metadata()
	if err != nil {
		return err
	}
	part.done(seen, meta.Sequence.Stream)
	return nil
}
