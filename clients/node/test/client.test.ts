import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, beforeEach, test } from "node:test";

import {
  create,
  type DescMessage,
  type DescMethodUnary,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from "@bufbuild/protobuf";
import { type sendUnaryData, Server, ServerCredentials, type ServerUnaryCall, status } from "@grpc/grpc-js";

import { Client, Hop, TidegateError } from "../src/index.js";
import { AdmissionService, FlowService, Verdict } from "../src/v1.js";

process.env["TIDEGATE_TOKEN_FILE"] = "";
process.chdir(mkdtempSync(join(tmpdir(), "tidegate-")));

/** UNAVAILABLE so often, then an answer. */
let failures = 0;
let ids: string[] = [];
let exits = 0;
let client: Client;
const server = new Server();

function serve<I extends DescMessage, O extends DescMessage>(
  method: DescMethodUnary<I, O>,
  answer: (request: MessageShape<I>) => MessageInitShape<O>,
): void {
  const definition = {
    path: `/${method.parent.typeName}/${method.name}`,
    requestStream: false,
    responseStream: false,
    requestSerialize: (value: MessageShape<I>) => Buffer.from(toBinary(method.input, value)),
    requestDeserialize: (bytes: Buffer) => fromBinary(method.input, bytes),
    responseSerialize: (value: MessageShape<O>) => Buffer.from(toBinary(method.output, value)),
    responseDeserialize: (bytes: Buffer) => fromBinary(method.output, bytes),
  };
  server.addService(
    { [method.name]: definition },
    {
      [method.name]: (call: ServerUnaryCall<MessageShape<I>, MessageShape<O>>, callback: sendUnaryData<MessageShape<O>>) => {
        const value = create(method.output, answer(call.request));
        if (ids.length > 0 && ids.length <= failures) callback({ code: status.UNAVAILABLE, details: "not yet" });
        else callback(null, value);
      },
    },
  );
}

const grant = { hopId: "1", traceparent: "00-1-2-01" };
serve(AdmissionService.method.admit, (request) => {
  ids.push(request.flowContext.case === "hop" ? request.flowContext.value.requestId : "");
  return { verdict: Verdict.ADMITTED, binding: { provider: "qwen", model: "qwen-next" }, hop: grant };
});
serve(FlowService.method.enterHop, (request) => {
  ids.push(request.requestId);
  return { verdict: Verdict.ADMITTED, grant };
});
serve(FlowService.method.recordTokens, (request) => {
  ids.push(request.requestId);
  return {};
});
serve(FlowService.method.exitHop, () => {
  exits += 1;
  return { closed: true };
});

before(async () => {
  const port = await new Promise<number>((resolve, reject) =>
    server.bindAsync("127.0.0.1:0", ServerCredentials.createInsecure(), (error, port) => (error ? reject(error) : resolve(port))),
  );
  client = new Client({ target: `127.0.0.1:${port}` });
});
beforeEach(() => {
  [failures, ids, exits] = [0, [], 0];
});
after(() => {
  client.close();
  server.forceShutdown();
});

const calls: Record<string, () => Promise<unknown>> = {
  enterHop: () => client.enterHop({ targetAgent: "coder" }),
  mayForward: async () => {
    const decision = await client.mayForward({ flowContext: { case: "hop", value: { targetAgent: "coder" } } });
    assert.ok(decision.forward && decision.hop);
  },
  recordTokens: () => new Hop(client, create(FlowService.method.enterHop.output, { grant }).grant!).recordTokens(5),
};
for (const [name, call] of Object.entries(calls)) {
  test(`a repeated ${name} has one id`, async () => {
    failures = 2;
    await call();
    assert.equal(ids.length, 3);
    assert.equal(new Set(ids).size, 1);
    assert.notEqual(ids[0], "");
  });
}

test("an id of the caller is kept", async () => {
  await client.enterHop({ requestId: "mine" });
  assert.deepEqual(ids, ["mine"]);
});

test("a hop is left", async () => {
  const hop = await client.enterHop({});
  assert.equal((await hop.exit(10, true)).closed, true);
  assert.equal(exits, 1);
});

test("nothing forwards that was not decided", async () => {
  for (const decision of [
    await client.mayForward({}, { signal: AbortSignal.abort() }),
    await client.mayForward({ requestBytes: 2n ** 80n }),
    await new Client({ target: "127.0.0.1:1", timeoutMs: 100 }).mayForward({}),
  ]) {
    assert.equal(decision.forward, false);
    assert.ok(!decision.forward && decision.error instanceof TidegateError);
    assert.ok(decision.httpAnswer.status >= 400);
  }
  assert.deepEqual(ids, []);
});

test("a call can be cancelled on its way", async () => {
  failures = Infinity;
  const controller = new AbortController();
  const pending = client.mayForward({}, { signal: controller.signal });
  controller.abort();
  const decision = await pending;
  assert.ok(!decision.forward && decision.error instanceof TidegateError && decision.error.code === status.CANCELLED);
});

test("a token stays on this machine", () => {
  mkdirSync("state");
  writeFileSync("state/local.token", "secret\n");
  for (const target of ["127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/s", "dns:///localhost:1"]) {
    new Client({ target, tokenFile: "state/local.token" }).close();
  }
  for (const target of ["192.0.2.1:1", "tidegate.example:1", "localhost.example:1", "127.0.0.1.example:1"]) {
    assert.throws(() => new Client({ target, tokenFile: "state/local.token" }), /needs TLS/);
    new Client({ target }).close(); // and the one that merely lies here is not shown
    new Client({ target, tokenFile: "state/local.token", tls: {} }).close();
  }
});

test("half a key pair is an error", () => {
  assert.throws(() => new Client({ tls: { certificate: "cert.pem" } }), /belong together/);
});
