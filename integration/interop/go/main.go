// The official Go client, driven by a test: one JSON command a line on stdin, one JSON answer a line on stdout.
// The commands are those of client.mjs. Bytes are base64, times are milliseconds. See command_process.py.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

type options struct {
	History     uint8             `json:"history"`
	TTL         float64           `json:"ttl"`
	MarkerTTL   float64           `json:"markerTTL"`
	Description string            `json:"description"`
	Storage     string            `json:"storage"`
	Compression bool              `json:"compression"`
	Metadata    map[string]string `json:"metadata"`
	Mirror      *source           `json:"mirror"`
	Sources     []*source         `json:"sources"`
}

type source struct {
	Name string `json:"name"`
}

type meta struct {
	Name        string            `json:"name"`
	Description string            `json:"description"`
	Headers     map[string]string `json:"headers"`
	Metadata    map[string]string `json:"metadata"`
	Options     struct {
		ChunkSize uint32 `json:"max_chunk_size"`
	} `json:"options"`
}

type command struct {
	Command      string   `json:"command"`
	URL          string   `json:"url"`
	Name         string   `json:"name"`
	Options      options  `json:"options"`
	Key          string   `json:"key"`
	Value        []byte   `json:"value"`
	TTL          string   `json:"ttl"`
	Last         uint64   `json:"last"`
	Revision     uint64   `json:"revision"`
	Filters      []string `json:"filters"`
	Times        int      `json:"times"`
	Watch        int      `json:"watch"`
	Object       string   `json:"object"`
	Meta         meta     `json:"meta"`
	Data         []byte   `json:"data"`
	TargetBucket string   `json:"target_bucket"`
	Target       string   `json:"target"`
}

type fields map[string]any

// watch returns the next entry or description of an iterator, and stops it.
type watch struct {
	next func() (any, error)
	stop func() error
}

type client struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	watches map[int]watch
	last    int
}

const limit = 60 * time.Second

func (c *client) run(one *command) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	switch one.Command {
	case "connect":
		return nil, c.connect(one.URL)
	case "close":
		for _, watch := range c.watches {
			_ = watch.stop()
		}
		c.nc.Close()
		return nil, nil
	case "next":
		return c.watches[one.Watch].next()
	case "stop":
		defer delete(c.watches, one.Watch)
		return nil, c.watches[one.Watch].stop()
	case "kv_create_bucket":
		return nil, c.createBucket(ctx, one)
	case "obj_create_bucket":
		_, err := c.js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{
			Bucket:      one.Name,
			Description: one.Options.Description,
			TTL:         duration(one.Options.TTL),
			Storage:     storage(one.Options.Storage),
			Compression: one.Options.Compression,
			Metadata:    one.Options.Metadata,
		})
		return nil, err
	}
	if one.Command[:3] == "kv_" {
		kv, err := c.js.KeyValue(ctx, one.Name)
		if err != nil {
			return nil, err
		}
		return c.keyValue(ctx, kv, one)
	}
	store, err := c.js.ObjectStore(ctx, one.Name)
	if err != nil {
		return nil, err
	}
	return c.objects(ctx, store, one)
}

func (c *client) connect(url string) error {
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	if err != nil {
		return err
	}
	c.nc, c.watches = nc, map[int]watch{}
	c.js, err = jetstream.New(nc)
	return err
}

func duration(milliseconds float64) time.Duration {
	return time.Duration(milliseconds * float64(time.Millisecond))
}

func storage(name string) jetstream.StorageType {
	if name == "memory" {
		return jetstream.MemoryStorage
	}
	return jetstream.FileStorage
}

func (c *client) createBucket(ctx context.Context, one *command) error {
	config := jetstream.KeyValueConfig{
		Bucket:         one.Name,
		History:        one.Options.History,
		TTL:            duration(one.Options.TTL),
		LimitMarkerTTL: duration(one.Options.MarkerTTL),
		Description:    one.Options.Description,
		Compression:    one.Options.Compression,
		Storage:        storage(one.Options.Storage),
		Metadata:       one.Options.Metadata,
	}
	if one.Options.Mirror != nil {
		config.Mirror = &jetstream.StreamSource{Name: one.Options.Mirror.Name}
	}
	for _, source := range one.Options.Sources {
		config.Sources = append(config.Sources, &jetstream.StreamSource{Name: source.Name})
	}
	_, err := c.js.CreateKeyValue(ctx, config)
	return err
}

func entry(one jetstream.KeyValueEntry) fields {
	operations := map[jetstream.KeyValueOp]string{
		jetstream.KeyValuePut: "PUT", jetstream.KeyValueDelete: "DEL", jetstream.KeyValuePurge: "PURGE",
	}
	value := one.Value()
	if value == nil {
		value = []byte{}
	}
	return fields{
		"key": one.Key(), "value": value, "revision": one.Revision(), "operation": operations[one.Operation()],
	}
}

func (c *client) keyValue(ctx context.Context, kv jetstream.KeyValue, one *command) (any, error) {
	switch one.Command {
	case "kv_put":
		return kv.Put(ctx, one.Key, one.Value)
	case "kv_create":
		if one.TTL == "" {
			return kv.Create(ctx, one.Key, one.Value)
		}
		ttl, err := time.ParseDuration(one.TTL)
		if err != nil {
			return nil, err
		}
		return kv.Create(ctx, one.Key, one.Value, jetstream.KeyTTL(ttl))
	case "kv_update":
		return kv.Update(ctx, one.Key, one.Value, one.Last)
	case "kv_get":
		return get(ctx, kv, one)
	case "kv_delete":
		return nil, kv.Delete(ctx, one.Key)
	case "kv_purge":
		if one.TTL == "" {
			return nil, kv.Purge(ctx, one.Key)
		}
		ttl, err := time.ParseDuration(one.TTL)
		if err != nil {
			return nil, err
		}
		return nil, kv.Purge(ctx, one.Key, jetstream.PurgeTTL(ttl))
	case "kv_keys":
		return keys(ctx, kv, one.Filters)
	case "kv_history":
		history, err := kv.History(ctx, one.Key)
		entries := []fields{}
		for _, one := range history {
			entries = append(entries, entry(one))
		}
		return entries, err
	case "kv_increment":
		return nil, increment(ctx, kv, one.Key, one.Times)
	case "kv_status":
		return status(ctx, kv)
	case "kv_watch":
		watcher, err := kv.WatchAll(context.Background())
		if err != nil {
			return nil, err
		}
		return c.keep(watcher.Stop, func() (any, error) {
			for {
				select {
				case one, ok := <-watcher.Updates():
					if !ok {
						return nil, nil
					} else if one != nil { // nil stands between the initial entries and the updates
						return entry(one), nil
					}
				case <-time.After(20 * time.Second):
					return nil, errors.New("nothing has come for 20 s")
				}
			}
		}), nil
	}
	return nil, fmt.Errorf("no command %s", one.Command)
}

func (c *client) keep(stop func() error, next func() (any, error)) int {
	c.last++
	c.watches[c.last] = watch{next, stop}
	return c.last
}

func get(ctx context.Context, kv jetstream.KeyValue, one *command) (any, error) {
	var found jetstream.KeyValueEntry
	var err error
	if one.Revision > 0 {
		found, err = kv.GetRevision(ctx, one.Key, one.Revision)
	} else {
		found, err = kv.Get(ctx, one.Key)
	}
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return entry(found), nil
}

func keys(ctx context.Context, kv jetstream.KeyValue, filters []string) ([]string, error) {
	if len(filters) == 0 {
		filters = []string{">"}
	}
	lister, err := kv.ListKeysFiltered(ctx, filters...)
	if err != nil {
		return nil, err
	}
	found := []string{}
	for key := range lister.Keys() {
		found = append(found, key)
	}
	return found, nil
}

func increment(ctx context.Context, kv jetstream.KeyValue, key string, times int) error {
	for done := 0; done < times; {
		one, err := kv.Get(ctx, key)
		if err != nil {
			return err
		}
		number, err := strconv.Atoi(string(one.Value()))
		if err != nil {
			return err
		}
		_, err = kv.Update(ctx, key, []byte(strconv.Itoa(number+1)), one.Revision())
		var refusal *jetstream.APIError
		if errors.As(err, &refusal) && (refusal.ErrorCode == 10071 || refusal.ErrorCode == 10164) {
			continue
		} else if err != nil {
			return err
		}
		done++
	}
	return nil
}

func status(ctx context.Context, kv jetstream.KeyValue) (any, error) {
	status, err := kv.Status(ctx)
	if err != nil {
		return nil, err
	}
	answer := fields{
		"history": status.History(), "ttl": status.TTL().Milliseconds(), "values": status.Values(),
		"compression": status.IsCompressed(), "metadata": status.Metadata(), "marker_ttl": nil,
		"description": status.Config().Description,
	}
	if ttl := status.LimitMarkerTTL(); ttl > 0 {
		answer["marker_ttl"] = ttl.Milliseconds()
	}
	return answer, nil
}

func main() {
	lines, answers, state := bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout), &client{}
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var one command
		if err := json.Unmarshal(line, &one); err != nil {
			_ = answers.Encode(fields{"error": err.Error(), "code": nil})
			continue
		}
		result, err := state.run(&one)
		if err == nil {
			_ = answers.Encode(fields{"result": result})
			continue
		}
		var code any
		var refusal *jetstream.APIError
		if errors.As(err, &refusal) {
			code = refusal.ErrorCode
		}
		_ = answers.Encode(fields{"error": err.Error(), "code": code})
	}
}
