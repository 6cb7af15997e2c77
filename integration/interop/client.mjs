// The official JavaScript client, driven by a test: one JSON command a line on stdin, one JSON answer a line on stdout.
// Bytes are base64, times are milliseconds. See command_process.py.

import { createInterface } from "node:readline";
import { connect, headers } from "@nats-io/transport-node";
import { Base64KeyCodec, Kvm, NoopKvCodecs } from "@nats-io/kv";
import { Objm } from "@nats-io/obj";
import { ServiceError, Svcm } from "@nats-io/services";

const state = { connection: null, buckets: {}, stores: {}, watches: {}, services: {}, last: 0 };

const NANOSECONDS = 1_000_000; // of a millisecond
const bytes = (text) => new Uint8Array(Buffer.from(text, "base64"));
const text = (data) => Buffer.from(data).toString("base64");
const entry = (one) => ({
  key: one.key,
  value: text(one.value),
  revision: one.revision,
  operation: one.operation,
  is_update: one.isUpdate,
});
const info = (one) => ({
  name: one.name,
  description: one.description ?? "",
  size: one.size ?? 0,
  chunks: one.chunks ?? 0,
  digest: one.digest ?? "",
  nuid: one.nuid ?? "",
  deleted: one.deleted ?? false,
  revision: one.revision,
  chunk_size: one.options?.max_chunk_size ?? 0,
  link: one.options?.link ?? null,
  metadata: one.metadata ?? {},
  headers: one.headers ? Object.fromEntries([...one.headers].map(([key, values]) => [key, values])) : {},
});

async function all(iterator, one = (item) => item) {
  const items = [];
  for await (const item of iterator) items.push(one(item));
  return items;
}

async function bucket(name) {
  state.buckets[name] ??= await new Kvm(state.connection).open(name);
  return state.buckets[name];
}

async function store(name) {
  state.stores[name] ??= await new Objm(state.connection).open(name);
  return state.stores[name];
}

// A test that waits for what does not come fails, and the next one goes on.
const late = () =>
  new Promise((_, reject) => setTimeout(() => reject(new Error("nothing has come for 20 s")), 20_000).unref());

function keep(iterator, one) {
  const id = ++state.last;
  state.watches[id] = { iterator, waiting: iterator[Symbol.asyncIterator](), one };
  return id;
}

function withHeaders(meta) {
  if (!meta.headers) return meta;
  const block = headers();
  for (const [name, value] of Object.entries(meta.headers)) block.append(name, value);
  return { ...meta, headers: block };
}

const commands = {
  async connect({ url }) {
    state.connection = await connect({ servers: url, reconnectTimeWait: 100, maxReconnectAttempts: -1 });
  },
  async close() {
    for (const { iterator } of Object.values(state.watches)) iterator.stop();
    for (const service of Object.values(state.services)) await service.stop();
    await state.connection?.close();
    Object.assign(state, { connection: null, buckets: {}, stores: {}, watches: {}, services: {} });
  },

  async kv_create_bucket({ name, options }) {
    state.buckets[name] = await new Kvm(state.connection).create(name, options);
  },
  async kv_encode_keys({ name }) {
    const codec = { key: Base64KeyCodec(), value: NoopKvCodecs().value };
    state.buckets[name] = await new Kvm(state.connection).open(name, { codec });
  },
  async kv_put({ name, key, value }) {
    return (await bucket(name)).put(key, bytes(value));
  },
  async kv_create({ name, key, value, ttl }) {
    return (await bucket(name)).create(key, bytes(value), ttl ?? undefined);
  },
  async kv_update({ name, key, value, last }) {
    return (await bucket(name)).update(key, bytes(value), last);
  },
  async kv_get({ name, key, revision }) {
    const one = await (await bucket(name)).get(key, revision ? { revision } : undefined);
    return one && entry(one);
  },
  async kv_delete({ name, key }) {
    await (await bucket(name)).delete(key);
  },
  async kv_purge({ name, key, ttl }) {
    await (await bucket(name)).purge(key, ttl ? { ttl } : undefined);
  },
  async kv_keys({ name, filters }) {
    return all(await (await bucket(name)).keys(filters.length ? filters : undefined));
  },
  async kv_history({ name, key }) {
    return all(await (await bucket(name)).history({ key }), entry);
  },
  async kv_watch({ name, key }) {
    return keep(await (await bucket(name)).watch(key ? { key } : {}), entry);
  },
  async kv_status({ name }) {
    const status = await (await bucket(name)).status();
    const { history, ttl, markerTTL, compression, metadata, values, replicas, description } = status;
    return { history, ttl, marker_ttl: markerTTL, compression, metadata, values, replicas, description };
  },
  async kv_increment({ name, key, times }) {
    const kv = await bucket(name);
    for (let done = 0; done < times; ) {
      const one = await kv.get(key);
      try {
        await kv.update(key, String(Number(Buffer.from(one.value).toString()) + 1), one.revision);
        done += 1;
      } catch (error) {
        if (![10071, 10164].includes(error.code)) throw error;
      }
    }
  },

  async obj_create_bucket({ name, options }) {
    const given = options.ttl ? { ...options, ttl: options.ttl * NANOSECONDS } : options;
    state.stores[name] = await new Objm(state.connection).create(name, given);
  },
  async obj_put({ name, meta, data }) {
    // Its timeout of 5 seconds is for all chunks together, which a busy machine needs longer for.
    return info(await (await store(name)).putBlob(withHeaders(meta), bytes(data), { timeout: 60_000 }));
  },
  async obj_get({ name, object }) {
    const data = await (await store(name)).getBlob(object);
    return data && text(data);
  },
  async obj_info({ name, object }) {
    const one = await (await store(name)).info(object);
    return one && info(one);
  },
  async obj_list({ name }) {
    return (await (await store(name)).list()).map(info);
  },
  async obj_delete({ name, object }) {
    await (await store(name)).delete(object);
  },
  async obj_update({ name, object, meta }) {
    await (await store(name)).update(object, withHeaders(meta));
  },
  async obj_link({ name, object, target_bucket, target }) {
    const at = await (await store(target_bucket)).info(target);
    return info(await (await store(name)).link(object, at));
  },
  async obj_link_bucket({ name, object, target_bucket }) {
    return info(await (await store(name)).linkStore(object, await store(target_bucket)));
  },
  async obj_seal({ name }) {
    await (await store(name)).seal();
  },
  async obj_status({ name }) {
    const { description, ttl, storage, sealed, size, compression } = await (await store(name)).status();
    return { description, ttl: ttl / NANOSECONDS, storage, sealed, size, compression };
  },
  async obj_watch({ name }) {
    return keep(await (await store(name)).watch({ includeHistory: true }), info);
  },

  async next({ watch }) {
    const { waiting, one } = state.watches[watch];
    const { value, done } = await Promise.race([waiting.next(), late()]);
    return done ? null : one(value);
  },
  async stop({ watch }) {
    state.watches[watch].iterator.stop();
    delete state.watches[watch];
  },

  async service_add({ name, version, description, metadata, subject }) {
    const service = await new Svcm(state.connection).add({ name, version, description, metadata });
    service.addEndpoint("echo", {
      subject,
      metadata: { format: "bytes" },
      handler: (error, message) => {
        if (message.data.length) message.respond(message.data);
        else message.respondError(404, "nothing to answer");
      },
    });
    await state.connection.flush();
    const id = service.info().id;
    state.services[id] = service;
    return id;
  },
  async service_stop({ id }) {
    await state.services[id].stop();
    delete state.services[id];
  },
  async service_ping({ name }) {
    return all(await new Svcm(state.connection).client({ maxWait: 500 }).ping(name));
  },
  async service_info({ name }) {
    return all(await new Svcm(state.connection).client({ maxWait: 500 }).info(name));
  },
  async service_stats({ name }) {
    return all(await new Svcm(state.connection).client({ maxWait: 500 }).stats(name));
  },
  async request({ subject, data }) {
    const reply = await state.connection.request(subject, bytes(data), { timeout: 2000 });
    const error = ServiceError.toServiceError(reply);
    return { data: text(reply.data), error: error && { code: error.code, description: error.message } };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...options } = JSON.parse(line);
  let answer;
  try {
    answer = { result: (await commands[command](options)) ?? null };
  } catch (error) {
    answer = { error: `${error.name}: ${error.message}`, code: error.code ?? null };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
process.exit(0);
