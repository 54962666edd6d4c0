import assert from "node:assert/strict";
import { test } from "node:test";

import { JsonObject } from "../examples/body.js";

test("one value is replaced, and no other byte", () => {
  for (const [body, want] of [
    ['{"model":"a"}', '{"model":"b"}'],
    ['{ "x" : [{"model":1}], "m\\u006fdel" :\t"„a“" , "n":1.0e2}\n', '{ "x" : [{"model":1}], "m\\u006fdel" :\t"b" , "n":1.0e2}\n'],
    ['{"x":"\\"model\\":\\"ä\\"","model":null,"y":[]}', '{"x":"\\"model\\":\\"ä\\"","model":"b","y":[]}'],
    ['{"x":1}', '{"model": "b", "x":1}'],
    ['{"a":{"model":"a"},"b":[[]],"model":{"c":[1]}}', '{"a":{"model":"a"},"b":[[]],"model":"b"}'],
  ] as const) {
    assert.equal(new JsonObject(Buffer.from(body)).with({ model: "b" }).toString(), want);
  }
});

test("what is no object, or has a name twice, is refused", () => {
  for (const body of ["", "[]", "{", '{"a":1', '{"a":1}x', '{"a":1}{}', '{"a":1,"a":2}', '{"a":1,"\\u0061":2}', "null"]) {
    assert.throws(() => new JsonObject(Buffer.from(body)), body);
  }
  assert.throws(() => new JsonObject(Buffer.from([0x7b, 0x22, 0xff, 0x22, 0x3a, 0x31, 0x7d])), "not UTF-8");
});
