/**
 * Pictures of kproxy, as elements of SVG. Only these elements are made, and texts are text nodes:
 * what a recording has is never markup.
 */

import { element } from "./dom.js";

const TAGS = new Set(["svg", "title", "text", "path", "rect"]);

/** @typedef {[tag: string, attributes: Record<string, string>, children: Array<any>]} Shape */
/** @typedef {{note: string, drawn: Shape}} Picture */

/** @param {Picture} picture */
export const picture = ({ note, drawn }) =>
  element("figure", { class: "pictured" }, made(drawn), element("figcaption", {}, note));

/**
 * @param {Shape} shape
 * @returns {Element}
 */
function made([tag, attributes, children]) {
  if (!TAGS.has(tag)) throw new Error(`a picture has no ${tag}`);
  const shape = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) shape.setAttribute(name, value);
  shape.append(...children.map((each) => (typeof each === "string" ? each : made(each))));
  return shape;
}
