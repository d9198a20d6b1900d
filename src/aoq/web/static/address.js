/**
 * Addresses of the page: `#/photos?run=vsrn&text=a+dog`. All that a view shows is in its address,
 * so every view can be linked to, and the back button goes where it should.
 */

/** The address of a view; parameters without a value are left out. */
export function address(view, parameters = {}) {
  const given = Object.entries(parameters).filter(
    ([, value]) => value !== null && value !== undefined && value !== "",
  );
  const query = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `#/${view}${query ? `?${query}` : ""}`;
}

/** The view and the parameters of an address. */
export function parsed(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { view: path, parameters: Object.fromEntries(new URLSearchParams(query)) };
}

/** A parameter that has to be a number from 0; null where it is missing or is none. */
export function number(parameters, name) {
  return /^\d{1,9}$/.test(parameters[name] ?? "") ? Number(parameters[name]) : null;
}
