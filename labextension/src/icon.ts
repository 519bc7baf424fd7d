import { LabIcon } from '@jupyterlab/ui-components';

/** The launcher's card of a size of one's own, drawn as gpukernel/jupyter/logo.py draws the slices'. */
export const RING =
  'data:image/svg+xml,' +
  encodeURIComponent(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64">
  <circle cx="32" cy="32" r="25.6" fill="none" stroke="#d5e3da" stroke-width="10.9"/>
  <path d="M32 6.4 A25.6 25.6 0 0 1 57.6 32" fill="none" stroke="#1e9e5a" stroke-width="10.9" stroke-dasharray="4 3"/>
  <g fill="#145335"><circle cx="22" cy="32" r="3.2"/><circle cx="32" cy="32" r="3.2"/><circle cx="42" cy="32" r="3.2"/></g>
</svg>`);

/** A ring of which a part is filled: a slice. */
export const sliceIcon = new LabIcon({
  name: 'gpukernel:slice',
  svgstr: `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3" fill="none" stroke="#616161" stroke-width="4.5">
    <circle cx="12" cy="12" r="8" opacity="0.35"/>
    <path d="M12 4 A8 8 0 0 1 19.6 14.5"/>
  </g>
</svg>`
});
