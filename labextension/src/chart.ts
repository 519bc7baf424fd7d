// The memory and compute of the last ten minutes as two lines.
import { IPoint } from './model';
import { __ } from './texts';

const WIDTH = 240;
const HEIGHT = 48;
const SPAN = 600;
const SVG = 'http://www.w3.org/2000/svg';

export function chart(points: IPoint[], now: number): SVGElement {
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('class', 'gpukernel-chart');
  svg.setAttribute('viewBox', `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute('preserveAspectRatio', 'none');
  svg.setAttribute('role', 'img');
  svg.setAttribute('aria-label', __('Memory and compute of the last ten minutes'));
  for (const which of ['memory', 'compute'] as const) {
    const line = document.createElementNS(SVG, 'polyline');
    line.setAttribute('class', `gpukernel-${which}`);
    line.setAttribute(
      'points',
      points
        .map(point => {
          const x = WIDTH - ((now - point.time) / SPAN) * WIDTH;
          return `${x.toFixed(1)},${(HEIGHT - 2 - point[which] * (HEIGHT - 4)).toFixed(1)}`;
        })
        .join(' ')
    );
    svg.appendChild(line);
  }
  return svg;
}
