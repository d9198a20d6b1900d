/**
 * Attention: a photo is chosen, whose view then shows what the model looks at.
 */

export { choose as show } from "./photo.js";
