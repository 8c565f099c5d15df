/**
 * The state of the page. What a person has chosen is in the address, so that it can be shared and
 * bookmarked, and Back works; what kproxy has said is beside it.
 *
 *     address ─▶ chosen ─▶ source ─▶ found ─▶ views
 *
 * Views read the store and call its functions; they change nothing in it.
 */

import { Refused } from "./refused.js";
import * as source from "./source.js";

const PORTION = 100;
const PORTIONS_KEPT = 60;
const AGAIN_MS = 250;
const GROWS_MS = 120;
/** The pause where exchanges come faster than anybody reads: the proxy keeps its processor. */
const FAST_MS = 200;
const FAST_COUNT = 50;
const OVERVIEW_MS = 500;
const ASKED_MAX = 2;
const WISHES_MAX = 3;

/** @typedef {import("./source.js").Row} Row */

/**
 * @typedef {object} Chosen what is in the address
 * @property {string} filter
 * @property {string} view one of VIEWS; "" is the list
 * @property {string} topic of the records
 * @property {string} exchange its name; "" if none is open
 * @property {string} story what it is of, `connection:3`; "" if none is told
 */

/** What is asked for by each view beside the list. */
const VIEWS = {
  statistics: (/** @type {Chosen} */ chosen) => source.statistics(chosen.filter),
  lanes: (/** @type {Chosen} */ chosen) => source.lanes(chosen.filter),
  records: (/** @type {Chosen} */ chosen) => source.records(chosen.filter, chosen.topic),
  faults: async () => ({ ...(await source.faults()), done: false }),
};

export class Store extends EventTarget {
  /** What can be asked for. */
  has = source.HAS;
  /** @type {Chosen} */
  chosen = fromAddress();
  count = 0;
  done = false;
  /** Whether all was read that is recorded so far, and more may come. */
  grows = false;
  /** @type {source.Live | null} the proxy that runs; null if none does */
  live = null;
  /** @type {string[]} */
  notices = [];
  /** @type {Refused | null} */
  wrong = null;
  /** @type {source.Overview | null} */
  overview = null;
  /** @type {source.Whole | null} */
  whole = null;
  /** @type {source.Story | null} */
  story = null;
  /** @type {(source.Statistics & source.Lanes & source.Records & source.Faults) | null} */
  made = null;
  /** @type {Map<number, Row[]>} */
  #portions = new Map();
  /** @type {Set<number>} */
  #asked = new Set();
  /** @type {number[]} the latest last */
  #wished = [];
  #turn = 0;

  constructor() {
    super();
    addEventListener("popstate", () => this.#choose(fromAddress()));
  }

  /** Begin: ask for what the address says. */
  start() {
    this.#take(async () => {
      const found = await source.live();
      this.live = found.live ? found : null;
      this.#changed("live");
    });
    this.#restart();
    this.#open();
    this.#tell();
    this.#make();
  }

  /** @param {string} filter */
  filter(filter) {
    this.#go({ ...this.chosen, filter });
  }

  /**
   * @param {string} view
   * @param {string} [topic]
   */
  view(view, topic = "") {
    this.#go({ ...this.chosen, view, topic });
  }

  /** @param {string} filter whose exchanges are listed */
  show(filter) {
    this.#go({ ...this.chosen, filter, view: "", topic: "" });
  }

  /** @param {string} exchange its name; "" closes it, and its story */
  open(exchange) {
    this.#go({ ...this.chosen, exchange, story: "" });
  }

  /** @param {string} story */
  tell(story) {
    this.#go({ ...this.chosen, story });
  }

  /**
   * Add a fault rule; show it with the others.
   * @param {{[word: string]: unknown}} rule
   */
  addFault(rule) {
    this.#take(async () => {
      await source.addFault(rule);
      this.view("faults");
    });
  }

  /** @param {() => Promise<source.Fault>} change of a rule, which the view of rules soon shows */
  changeFault(change) {
    this.#take(async () => void (await change()));
  }

  /**
   * The row at a place, if it is there; else it is asked for.
   * @param {number} place
   * @returns {Row | undefined}
   */
  row(place) {
    const portion = Math.floor(place / PORTION);
    const found = this.#portions.get(portion);
    const row = found?.[place % PORTION];
    if (!row && place < this.count) this.#wish(portion);
    return row;
  }

  /** @param {Chosen} chosen */
  #go(chosen) {
    const query = new URLSearchParams(Object.entries(chosen).filter(([, value]) => value));
    const text = query.toString();
    history.pushState(null, "", text ? source.ADDRESS_MARK + text : location.pathname);
    this.#choose(chosen);
  }

  /** @param {Chosen} chosen */
  #choose(chosen) {
    const before = this.chosen;
    this.chosen = chosen;
    if (before.filter !== chosen.filter) this.#restart();
    if (!sameView(before, chosen)) this.#make();
    if (before.exchange !== chosen.exchange) this.#open();
    if (before.story !== chosen.story) this.#tell();
    this.#changed("chosen");
  }

  #restart() {
    this.#turn += 1;
    this.#portions.clear();
    this.#asked.clear();
    this.#wished = [];
    Object.assign(this, { count: 0, done: false, grows: false, notices: [], wrong: null });
    this.overview = null;
    this.#ask(0);
    this.#follow();
  }

  /** Ask how many there are, until all is read; of a recording that grows, as long as it does. */
  async #follow() {
    const turn = this.#turn;
    let looked = { count: -1, at: 0 };
    while (turn === this.#turn && !this.done && !this.wrong) {
      await visible();
      const known = this.count;
      try {
        const found = await source.more(this.chosen.filter, known);
        if (turn !== this.#turn) return;
        this.#hear(found);
      } catch (error) {
        if (turn === this.#turn) this.#fail(error);
        return;
      }
      const { count, done } = this;
      const fast = count - known >= FAST_COUNT;
      const overviewMs = fast ? 2 * OVERVIEW_MS : OVERVIEW_MS;
      if (done || (looked.count !== count && Date.now() - looked.at >= overviewMs)) {
        looked = { count, at: Date.now() };
        this.#look(turn);
      }
      await pause(fast ? FAST_MS : GROWS_MS);
    }
  }

  /** @param {source.Rows} found */
  #hear({ count, done, grows, notices, error }) {
    this.count = count;
    this.done = done || error !== null;
    this.grows ||= grows;
    this.notices = error ? [...notices, error] : notices;
    this.#changed("rows");
  }

  /**
   * Ask for a portion when it is its turn: whoever scrolls fast sees the rows where they stop, not
   * those that they have passed.
   * @param {number} portion
   */
  #wish(portion) {
    this.#wished = [...this.#wished.filter((each) => each !== portion), portion].slice(-WISHES_MAX);
    this.#fulfil();
  }

  async #fulfil() {
    if (this.#asked.size >= ASKED_MAX) return;
    const portion = this.#wished.pop();
    if (portion === undefined) return;
    await this.#ask(portion);
    this.#fulfil();
  }

  /** @param {number} portion */
  async #ask(portion) {
    if (this.#asked.has(portion)) return;
    this.#asked.add(portion);
    const turn = this.#turn;
    const had = this.#portions.get(portion) ?? [];
    const begin = portion * PORTION + had.length;
    try {
      const found = await source.rows(this.chosen.filter, begin, (portion + 1) * PORTION);
      if (turn !== this.#turn) return;
      this.#keep(portion, [...had, ...found.rows]);
      this.#hear(found);
    } catch (error) {
      if (turn === this.#turn) this.#fail(error);
    } finally {
      if (turn === this.#turn) this.#asked.delete(portion);
    }
  }

  /** @param {number} turn */
  async #look(turn) {
    try {
      const found = await source.overview(this.chosen.filter);
      if (turn !== this.#turn) return;
      this.overview = found;
      this.#changed("overview");
    } catch (error) {
      if (turn === this.#turn) this.#fail(error);
    }
  }

  /**
   * @param {number} portion
   * @param {Row[]} rows
   */
  #keep(portion, rows) {
    this.#portions.delete(portion);
    this.#portions.set(portion, rows);
    if (this.#portions.size > PORTIONS_KEPT) {
      const [oldest] = this.#portions.keys();
      this.#portions.delete(oldest);
    }
  }

  async #open() {
    const { exchange } = this.chosen;
    this.whole = null;
    if (exchange)
      await this.#take(async () => {
        const found = await source.exchange(exchange);
        if (exchange === this.chosen.exchange) this.whole = found;
      });
    this.#changed("exchange");
  }

  async #tell() {
    const { story } = this.chosen;
    this.story = story ? { done: false } : null;
    this.#changed("story");
    await this.#until(
      () => story !== "" && story === this.chosen.story,
      async () => (this.story = await source.story(story)),
    );
    this.#changed("story");
  }

  async #make() {
    const { chosen } = this;
    const ask = VIEWS[/** @type {keyof typeof VIEWS} */ (chosen.view)];
    this.made = null;
    this.#changed("made");
    const wanted = () => ask !== undefined && sameView(chosen, this.chosen);
    await this.#until(wanted, async () => {
      const made = await ask(chosen);
      if (wanted()) {
        this.made = /** @type {any} */ (made);
        this.#changed("made");
      }
      return made;
    });
  }

  /**
   * Ask again and again, as long as somebody wants to know and it is not done.
   * @param {() => boolean} wanted
   * @param {() => Promise<{done: boolean}>} ask
   */
  async #until(wanted, ask) {
    let done = false;
    while (!done && wanted()) {
      await this.#take(async () => {
        done = true;
        done = (await ask()).done;
      });
      if (!done) await pause(AGAIN_MS);
    }
  }

  /** @param {() => Promise<void>} ask */
  async #take(ask) {
    try {
      await ask();
    } catch (error) {
      this.#fail(error);
    }
  }

  /** @param {unknown} error */
  #fail(error) {
    if (!(error instanceof Refused)) throw error;
    this.wrong = error;
    this.#changed("wrong");
  }

  /** @param {string} what */
  #changed(what) {
    this.dispatchEvent(new Event(what));
  }
}

/** @param {number} ms */
const pause = (ms) => new Promise((resume) => setTimeout(resume, ms));

/** Wait until somebody can see the page. */
async function visible() {
  while (document.hidden)
    await new Promise((resume) =>
      document.addEventListener("visibilitychange", resume, { once: true }),
    );
}

/**
 * @param {Chosen} one
 * @param {Chosen} other
 */
const sameView = (one, other) =>
  one.view === other.view && one.topic === other.topic && one.filter === other.filter;

/** @returns {Chosen} */
function fromAddress() {
  const { search, hash } = location;
  const text = source.ADDRESS_MARK === "#" ? hash : search;
  const query = new URLSearchParams(text.slice(1));
  const of = (/** @type {string} */ name) => query.get(name) ?? "";
  return {
    filter: of("filter"),
    view: of("view"),
    topic: of("topic"),
    exchange: of("exchange"),
    story: of("story"),
  };
}
