// The official Node SDK against the front over a scripted Horde (scripts/test_node.py starts both).
import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI({ baseURL: process.env.FRONT_URL, apiKey: "0000000000", maxRetries: 0 });
const script = process.env.SCRIPT_URL;
const model = "test/model-a";
const messages = [{ role: "user", content: "Hi" }];
const tools = [
  {
    type: "function",
    function: {
      name: "lookup",
      strict: true,
      parameters: {
        type: "object",
        properties: { q: { type: "string" } },
        required: ["q"],
        additionalProperties: false,
      },
    },
  },
];
const call = { id: "call_1", type: "function", function: { name: "lookup", arguments: '{"q":"x"}' } };

/** Tell the scripted Horde what the next requests are answered with. */
async function answer(reply) {
  const response = await fetch(script, { method: "POST", body: JSON.stringify(reply) });
  assert.equal(response.status, 200);
}

test("create returns the reply with what the Horde knows", async () => {
  await answer({ content: "Hello." });
  const completion = await client.chat.completions.create({ model, messages });
  assert.equal(completion.choices[0].message.content, "Hello.");
  assert.equal(completion.choices[0].finish_reason, "stop");
  assert.equal(completion.id, `chatcmpl-${completion._request_id}`);
  assert.equal(completion.x_horde.worker_name, "A worker");
});

test("a stream yields chunks and ends", async () => {
  await answer({ content: "Hello." });
  const stream = await client.chat.completions.create({
    model,
    messages,
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = "";
  let usage;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, "Hello.");
  assert.equal(usage.total_tokens, 16);
});

test("the stream helper accumulates the same message", async () => {
  await answer({ content: null, tool_calls: [call], finish_reason: "tool_calls" });
  const completion = await client.chat.completions.stream({ model, messages, tools }).finalChatCompletion();
  const message = completion.choices[0].message;
  assert.deepEqual(message.tool_calls[0].function.arguments, call.function.arguments);
  await answer({ content: "Found it." });
  const history = [...messages, message, { role: "tool", tool_call_id: "call_1", content: "R" }];
  const second = await client.chat.completions.create({ model, messages: history, tools });
  assert.equal(second.choices[0].message.content, "Found it.");
});

test("runTools makes a whole tool round", async () => {
  await answer([{ content: null, tool_calls: [call], finish_reason: "tool_calls" }, { content: "Found it." }]);
  const runnable = { ...tools[0], function: { ...tools[0].function, function: () => "R", parse: JSON.parse } };
  const runner = client.chat.completions.runTools({ model, messages, tools: [runnable] });
  assert.equal(await runner.finalContent(), "Found it.");
});

test("parse returns the structured answer", async () => {
  await answer({ content: '{"word":"five","length":4}' });
  const shape = z.object({ word: z.string(), length: z.number() });
  const completion = await client.chat.completions.parse({
    model,
    messages,
    response_format: zodResponseFormat(shape, "answer"),
  });
  assert.deepEqual(completion.choices[0].message.parsed, { word: "five", length: 4 });
});

test("errors have their class, code, param and request id", async () => {
  await assert.rejects(client.chat.completions.create({ model, messages, logit_bias: { 50256: -100 } }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.code, "UnsupportedChatParameter");
    assert.equal(error.param, "logit_bias");
    assert.ok(error.requestID);
    return true;
  });
  const stranger = new OpenAI({ baseURL: process.env.FRONT_URL, apiKey: "two words", maxRetries: 0 });
  await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
});

test("an error inside a stream is thrown", async () => {
  await answer({ faulted: true });
  const stream = await client.chat.completions.create({ model, messages, stream: true });
  await assert.rejects(
    async () => {
      for await (const _ of stream);
    },
    (error) => error instanceof OpenAI.APIError && error.code === "ChatRequestFaulted",
  );
});

test("models are listed and shown", async () => {
  const ids = [];
  for await (const entry of client.models.list()) ids.push(entry.id);
  assert.deepEqual(ids, [model]);
  assert.equal((await client.models.retrieve(model)).x_horde.workers, 3);
});
