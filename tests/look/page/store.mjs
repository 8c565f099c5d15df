/**
 * The store of the page without a browser: answers come when this says, in any order.
 */

import assert from "node:assert/strict";

/** @type {{path: string, answer: (body: any, status?: number) => void}[]} */
const asked = [];
const listeners = {};
Object.assign(globalThis, {
  location: { search: "", hash: "", pathname: "/" },
  history: { pushState() {}, replaceState() {} },
  document: { hidden: false },
  addEventListener: (name, run) => (listeners[name] = run),
  fetch: (path) =>
    new Promise((resolve) => {
      const json = (body) => async () => (body === CUT ? JSON.parse("{") : body);
      const answer = (body, status = 200) =>
        resolve({ ok: status < 400, status, json: json(body) });
      asked.push({ path, answer });
    }),
});
const CUT = {};
const { Store } = await import("./store.js");
const { isAsSent, narrowed } = await import("./terms.js");
const { Portions } = await import("./portions.js");
const { shortName } = await import("./words.js");

/** The oldest question that has these words and has no answer yet. */
async function question(...words) {
  for (;;) {
    const at = asked.findIndex(({ path }) => words.every((word) => path.includes(word)));
    if (at >= 0) return asked.splice(at, 1)[0];
    await new Promise((resume) => setTimeout(resume, 5));
  }
}

const settled = () => new Promise((resume) => setTimeout(resume, 20));
const rows = (count, more = {}) => ({
  rows: [], count, done: false, grows: true, place: null, notices: [], error: null, ...more,
});

async function started() {
  asked.length = 0;
  const store = new Store();
  store.start();
  (await question("/live")).answer({ live: true, recorded: true });
  await settled();
  return store;
}

{ // the number can be read, however long the name of the recording is
  const names = ["#1234567890", "shop#12", "kafka-20261129-0030#12", "20261129-0030#1234567"];
  const short = ["#1234567890", "shop#12", "…-0030#12", "…#1234567"];
  assert.deepEqual(names.map(shortName), short);
}

{ // rows that kproxy looks for anew are asked for again, after a pause
  let asks = 0;
  const row = { name: "#251" };
  const ask = async () => ({ ...rows(500), rows: (asks += 1) > 1 ? Array(100).fill(row) : [] });
  const portions = new Portions(ask, () => portions.row(250) ?? portions.want(250));
  portions.want(250);
  await settled();
  assert.equal(asks, 1);
  while (!portions.row(250)) await settled();
  assert.equal(asks, 2);
}

{ // an older mistake is not the new filter's, and the list goes on
  const store = await started();
  store.filter("wrong");
  const [first, more] = [await question("wrong", "end=100"), await question("wrong", "known")];
  store.filter("right");
  first.answer({ error: "no", key: "1" }, 422);
  more.answer({ error: "no", key: "1" }, 422);
  (await question("right", "known=0")).answer(rows(3));
  await settled();
  assert.deepEqual([store.errors, store.count], [{}, 3]);
  store.tell("nonsense:1");
  (await question("/story")).answer({ error: "it has no story" }, 422);
  await settled();
  assert.equal(store.errors.story.message, "it has no story");
  (await question("right", "known=3")).answer({ error: "ask again" }, 503);
  (await question("right", "known=3")).answer(rows(4));
  await settled();
  assert.equal(store.count, 4);
  store.view("lanes");
  (await question("/lanes")).answer({ error: "no lanes" }, 410);
  (await question("right", "known=4")).answer(CUT);
  await settled();
  assert.match(store.errors.list.message, /does not answer/);
  store.filter("right"); // Enter, once more
  (await question("right", "known=0")).answer(rows(5));
  await settled();
  assert.deepEqual([store.errors.list, store.count], [undefined, 5]);
  store.filter("end");
}

{ // answers to what is no longer asked for are dropped
  const store = await started();
  store.tell("connection:1");
  const one = await question("connection%3A1");
  store.tell("connection:2");
  (await question("connection%3A2")).answer({ done: true, sentences: ["two"] });
  await settled();
  one.answer({ done: true, sentences: ["one"] });
  await settled();
  assert.deepEqual(store.story.sentences, ["two"]);
  store.tell("connection:3");
  const three = await question("connection%3A3");
  store.tell("");
  three.answer({ done: true, sentences: ["three"] });
  await settled();
  assert.equal(store.story, null);
  store.open("#1");
  const opened = await question("/exchange", "%231");
  store.open("");
  opened.answer({ error: "there is no exchange 1" }, 404);
  const [older, newer] = [await question("=&begin", "end=100"), await question("=&begin", "known=0")];
  newer.answer(rows(9, { done: true }));
  await settled();
  older.answer(rows(2));
  await settled();
  assert.deepEqual([store.done, store.count, store.errors, store.whole], [true, 9, {}, null]);
}

assert.ok(isAsSent("…") && isAsSent("t".repeat(249)) && isAsSent("t".repeat(300)));
assert.ok(!isAsSent(`${"t".repeat(249)}…`) && !isAsSent("\\u202e"));

const [filters, terms] = JSON.parse(process.argv[2]);
const made = filters.map((filter) => terms.map((term) => narrowed(filter, term, true)));
process.stdout.write(JSON.stringify(made));
process.exit(0);
