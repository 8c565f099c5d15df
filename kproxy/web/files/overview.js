/**
 * How many exchanges there are over time, by API; a range that is drawn becomes a filter of time.
 */

import { element } from "./dom.js";

const COLOURS = 8;

/**
 * @param {import("./store.js").Store} store
 * @param {HTMLElement} place
 */
export function showOverview(store, place) {
  const canvas = /** @type {HTMLCanvasElement} */ (element("canvas", {}));
  const range = element("div", { class: "range", hidden: true });
  const legend = element("p", { class: "legend" });
  place.append(element("div", { class: "plot" }, canvas, range), legend);
  /** @type {{begin: number, end: number} | null} in milliseconds since 1970 */
  let shown = null;
  let from = -1;

  const draw = () => {
    const slots = slotsOf(store.overview);
    place.hidden = slots.length < 2;
    if (place.hidden || !store.overview) return;
    const slot_ms = store.overview.slot_ms;
    const first = slots[0].slot;
    const count = slots[slots.length - 1].slot - first + 1;
    shown = { begin: first * slot_ms, end: (first + count) * slot_ms };
    const apis = apisOf(slots);
    paint(canvas, slots, first, count, apis);
    legend.replaceChildren(
      ...apis.map((api, n) => element("span", { class: `c${n % COLOURS}` }, element("i"), api)),
    );
  };
  /** @param {PointerEvent} event */
  const share = (event) => {
    const box = canvas.getBoundingClientRect();
    return Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
  };
  canvas.addEventListener("pointerdown", (event) => {
    from = share(event);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (from < 0) return;
    const to = share(event);
    range.hidden = false;
    range.style.left = `${100 * Math.min(from, to)}%`;
    range.style.width = `${100 * Math.abs(to - from)}%`;
  });
  canvas.addEventListener("pointerup", (event) => {
    const to = share(event);
    const [low, high] = [Math.min(from, to), Math.max(from, to)];
    from = -1;
    range.hidden = true;
    if (!shown || high - low < 0.004) return;
    const width = shown.end - shown.begin;
    const times = [low, high].map((at) => moment(shown ? shown.begin + at * width : 0));
    const rest = store.chosen.filter.replace(/(^|\s)time:\S+/g, "").trim();
    store.filter(`${rest} time:${times.join("..")}`.trim());
  });
  new ResizeObserver(draw).observe(place);
  for (const what of ["overview", "rows"]) store.addEventListener(what, draw);
}

/** @typedef {{slot: number, apis: Record<string, number>}} Slot */

/**
 * @param {import("./source.js").Overview | null} overview
 * @returns {Slot[]}
 */
function slotsOf(overview) {
  const counts = Object.entries(overview?.counts ?? {});
  const slots = counts.map(([slot, apis]) => ({ slot: Number(slot), apis }));
  return slots.sort((one, other) => one.slot - other.slot);
}

/**
 * The APIs, those with most exchanges first.
 * @param {Slot[]} slots
 */
function apisOf(slots) {
  /** @type {Map<string, number>} */
  const totals = new Map();
  for (const { apis } of slots)
    for (const [api, count] of Object.entries(apis))
      totals.set(api, (totals.get(api) ?? 0) + count);
  return [...totals].sort((one, other) => other[1] - one[1]).map(([api]) => api);
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {Slot[]} slots
 * @param {number} first
 * @param {number} count
 * @param {string[]} apis
 */
function paint(canvas, slots, first, count, apis) {
  const scale = devicePixelRatio || 1;
  const width = (canvas.width = canvas.clientWidth * scale);
  const height = (canvas.height = canvas.clientHeight * scale);
  const pen = canvas.getContext("2d");
  if (!pen) return;
  const style = getComputedStyle(canvas);
  const colours = apis.map((_, n) => style.getPropertyValue(`--c${n % COLOURS}`));
  const sums = slots.map(({ apis }) => Object.values(apis).reduce((a, b) => a + b, 0));
  const highest = Math.max(...sums);
  const wide = Math.max(1, width / count - 0.5);
  for (const { slot, apis: counts } of slots) {
    let top = height;
    apis.forEach((api, n) => {
      const part = ((counts[api] ?? 0) / highest) * height;
      pen.fillStyle = colours[n];
      pen.fillRect(((slot - first) / count) * width, top - part, wide, part);
      top -= part;
    });
  }
}

/** @param {number} ms */
const moment = (ms) => new Date(ms).toISOString();
