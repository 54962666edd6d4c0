// The openai SDK for Node, told what to do in lines of JSON on stdin: {method, body, headers, retries}. It answers each
// line with what its user sees: {text} or {chunks}, or the error's own fields, and how many requests it took.
import { createInterface } from "node:readline";

import OpenAI from "openai";

const METHODS = {
  chat: (client, body, options) => client.chat.completions.create(body, options),
  responses: (client, body, options) => client.responses.create(body, options),
};

async function carryOut({ method, body, headers, retries }) {
  let sent = 0;
  const counted = (...call) => {
    sent += 1;
    return fetch(...call);
  };
  const client = new OpenAI({ baseURL: process.argv[2], apiKey: "sk-callers-own", fetch: counted, maxRetries: retries ?? 2 });
  try {
    const answer = await METHODS[method](client, body, { headers });
    if (!body.stream) return { text: answer.output_text ?? answer.choices[0].message.content, sent };
    const chunks = [];
    for await (const chunk of answer) {
      chunks.push(chunk.choices[0].delta.content);
      if (chunks.length === 1) process.stdout.write(`${JSON.stringify({ first: chunks[0] })}\n`);
    }
    return { chunks, sent };
  } catch (error) {
    return { error: error.constructor.name, status: error.status, code: error.code, type: error.type, sent };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await carryOut(JSON.parse(line)))}\n`);
}
