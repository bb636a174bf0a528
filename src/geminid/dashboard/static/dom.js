// What every module needs of Preact, in one place.

import { h, render, Fragment } from "./vendor/preact.js";
import { useEffect, useLayoutEffect, useMemo, useRef, useState, useCallback } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
export { render, Fragment, useEffect, useLayoutEffect, useMemo, useRef, useState, useCallback };
