// Elements are made of data by these functions alone, and text goes in as text: nothing that anybody named is ever markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element. `attributes`: true is an empty one, false, null and undefined are none; `style` is an object. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") {
      for (const [property, text] of Object.entries(value)) element.style.setProperty(property, String(text));
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false && child !== ""));
  return element;
}

/** Make `parent` hold `children`, changing as little as possible: focus, selection and opened details stay. */
export function show(parent, children) {
  const fresh = [children].flat(Infinity).filter(Boolean);
  const kept = new Map([...parent.children].filter((e) => e.dataset.key).map((e) => [e.dataset.key, e]));
  let place = parent.firstChild;
  for (let next of fresh) {
    if (typeof next === "string") next = document.createTextNode(next);
    const old = next.dataset?.key ? kept.get(next.dataset.key) : place && !place.dataset?.key ? place : null;
    if (old && isSame(old, next)) {
      if (old === place) place = old.nextSibling;
      else parent.insertBefore(old, place);
      update(old, next);
    } else {
      parent.insertBefore(next, place);
    }
  }
  while (place) {
    const following = place.nextSibling;
    place.remove();
    place = following;
  }
  parent.removeAttribute?.("aria-busy");
}

function isSame(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName && one.dataset?.key === other.dataset?.key;
}

function update(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    const isTheReaders = name === "open" && old.nodeName === "DETAILS";
    if (name !== "style" && !isTheReaders && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (old.style.cssText !== fresh.style.cssText) old.style.cssText = fresh.style.cssText;
  show(old, [...fresh.childNodes]);
}
