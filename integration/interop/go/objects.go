package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func info(one *jetstream.ObjectInfo) fields {
	answer := fields{
		"name": one.Name, "description": one.Description, "size": one.Size, "chunks": one.Chunks, "digest": one.Digest,
		"nuid": one.NUID, "deleted": one.Deleted, "metadata": one.Metadata, "headers": one.Headers, "link": nil,
		"chunk_size": 0,
	}
	if one.Metadata == nil {
		answer["metadata"] = fields{}
	}
	if one.Headers == nil {
		answer["headers"] = fields{}
	}
	if one.Opts != nil {
		answer["chunk_size"] = one.Opts.ChunkSize
		if link := one.Opts.Link; link != nil {
			answer["link"] = fields{"bucket": link.Bucket, "name": link.Name}
		}
	}
	return answer
}

func description(one meta) jetstream.ObjectMeta {
	answer := jetstream.ObjectMeta{Name: one.Name, Description: one.Description, Metadata: one.Metadata}
	if len(one.Headers) > 0 {
		answer.Headers = nats.Header{}
		for name, value := range one.Headers {
			answer.Headers.Add(name, value)
		}
	}
	if one.Options.ChunkSize > 0 {
		answer.Opts = &jetstream.ObjectMetaOptions{ChunkSize: one.Options.ChunkSize}
	}
	return answer
}

func (c *client) objects(ctx context.Context, store jetstream.ObjectStore, one *command) (any, error) {
	switch one.Command {
	case "obj_put":
		found, err := store.Put(ctx, description(one.Meta), bytes.NewReader(one.Data))
		if err != nil {
			return nil, err
		}
		return info(found), nil
	case "obj_get":
		data, err := store.GetBytes(ctx, one.Object)
		if errors.Is(err, jetstream.ErrObjectNotFound) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		return append([]byte{}, data...), nil
	case "obj_info":
		found, err := store.GetInfo(ctx, one.Object)
		if errors.Is(err, jetstream.ErrObjectNotFound) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		return info(found), nil
	case "obj_list":
		return list(ctx, store)
	case "obj_delete":
		return nil, store.Delete(ctx, one.Object)
	case "obj_update":
		return nil, store.UpdateMeta(ctx, one.Object, description(one.Meta))
	case "obj_link", "obj_link_bucket":
		return c.link(ctx, store, one)
	case "obj_seal":
		return nil, store.Seal(ctx)
	case "obj_status":
		status, err := store.Status(ctx)
		if err != nil {
			return nil, err
		}
		return fields{
			"description": status.Description(), "ttl": status.TTL().Milliseconds(), "sealed": status.Sealed(),
			"size": status.Size(), "compression": status.IsCompressed(),
		}, nil
	case "obj_watch":
		return c.watchObjects(store)
	}
	return nil, fmt.Errorf("no command %s", one.Command)
}

func list(ctx context.Context, store jetstream.ObjectStore) (any, error) {
	found, err := store.List(ctx)
	if err != nil && !errors.Is(err, jetstream.ErrNoObjectsFound) {
		return nil, err
	}
	answers := []fields{}
	for _, one := range found {
		answers = append(answers, info(one))
	}
	return answers, nil
}

func (c *client) link(ctx context.Context, store jetstream.ObjectStore, one *command) (any, error) {
	other, err := c.js.ObjectStore(ctx, one.TargetBucket)
	if err != nil {
		return nil, err
	}
	var link *jetstream.ObjectInfo
	if one.Command == "obj_link_bucket" {
		link, err = store.AddBucketLink(ctx, one.Object, other)
	} else {
		var target *jetstream.ObjectInfo
		if target, err = other.GetInfo(ctx, one.Target); err == nil {
			link, err = store.AddLink(ctx, one.Object, target)
		}
	}
	if err != nil {
		return nil, err
	}
	return info(link), nil
}

func (c *client) watchObjects(store jetstream.ObjectStore) (any, error) {
	watcher, err := store.Watch(context.Background())
	if err != nil {
		return nil, err
	}
	return c.keep(watcher.Stop, func() (any, error) {
		for {
			select {
			case one, ok := <-watcher.Updates():
				if !ok {
					return nil, nil
				} else if one != nil {
					return info(one), nil
				}
			case <-time.After(20 * time.Second):
				return nil, errors.New("nothing has come for 20 s")
			}
		}
	}), nil
}
