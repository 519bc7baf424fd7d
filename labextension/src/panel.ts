// The side panel: this person's slices across notebooks, and elsewhere.
import { Notification, showErrorMessage } from '@jupyterlab/apputils';
import { Widget } from '@lumino/widgets';
import { chart } from './chart';
import { askForResize } from './dialogs';
import { sliceIcon } from './icon';
import { IKernelStatus, ILeaseStatus, IOtherLease } from './kernel_status';
import { duration, percent, size, Slices } from './model';

export class SlicesPanel extends Widget {
  /** `nameOf` says which notebook a kernel belongs to; `create` starts a kernel of one's own size. */
  constructor(slices: Slices, nameOf: (kernel: string) => string, create: () => void) {
    super();
    this.id = 'gpukernel-panel';
    this.title.icon = sliceIcon;
    this.title.caption = 'GPU slices';
    this.addClass('gpukernel-panel');
    this._slices = slices;
    this._nameOf = nameOf;
    const head = element('div', 'gpukernel-head');
    head.append(element('span', 'gpukernel-title', 'GPU slices'), button('Your own size…', create));
    this._body = element('div', 'gpukernel-body');
    this.node.append(head, this._body);
    slices.changed.connect(this._draw, this);
  }

  protected onAfterShow(): void {
    this._slices.watched = true;
    this._draw();
  }

  protected onAfterHide(): void {
    this._slices.watched = false;
  }

  dispose(): void {
    this._slices.changed.disconnect(this._draw, this);
    super.dispose();
  }

  private _draw(): void {
    if (!this.isVisible) {
      return;
    }
    const { kernels, others, problem } = this._slices.status;
    const cards: HTMLElement[] = [];
    if (problem) {
      cards.push(element('div', 'gpukernel-problem', problem));
    }
    cards.push(...kernels.map(kernel => this._kernel(kernel)));
    if (others.length) {
      cards.push(element('div', 'gpukernel-section', 'On other servers'));
      cards.push(...others.map(other => this._other(other)));
    }
    if (!kernels.length && !others.length && !problem) {
      cards.push(
        element(
          'div',
          'gpukernel-empty',
          'You hold no slice. Choose a kernel like “V100 × 0.02” in the launcher, or a size of your own.'
        )
      );
    }
    this._body.replaceChildren(...cards);
  }

  private _kernel(kernel: IKernelStatus): HTMLElement {
    const card = element('div', 'gpukernel-card');
    card.dataset.state = kernel.state;
    const title = element('div', 'gpukernel-card-title');
    title.append(
      element('span', '', kernel.what),
      element('span', 'gpukernel-card-name', this._nameOf(kernel.kernel_id))
    );
    card.append(title);
    const act = (what: string, body: object = {}) => () => {
      this._slices.act(kernel.kernel_id, what, body).catch(error => {
        Notification.error((error as Error).message, { autoClose: 8000 });
      });
    };
    const buttons = element('div', 'gpukernel-buttons');
    if (kernel.state === 'live') {
      card.append(...this._use(kernel), chart(this._slices.history(kernel.kernel_id), this._slices.status.time));
      buttons.append(
        button('Resize…', () => void this._resize(kernel)),
        button('Release', act('release'))
      );
    } else if (kernel.state === 'waiting') {
      const about = kernel.estimate_seconds >= 0 ? `, about ${duration(kernel.estimate_seconds)} to go` : '';
      const place = kernel.position ? `Position ${kernel.position} in the queue${about}.` : 'Asking the pool …';
      card.append(element('div', 'gpukernel-words', `${place} The kernel runs; its first CUDA call waits.`));
      buttons.append(button('Leave the queue', act('cancel')));
    } else {
      card.append(element('div', 'gpukernel-words', sentence(kernel.sentence || 'No slice now')));
      buttons.append(button('Acquire', act('acquire')));
    }
    if (kernel.notice) {
      card.append(element('div', 'gpukernel-notice', kernel.notice));
    }
    card.append(buttons);
    return card;
  }

  private _other(other: IOtherLease): HTMLElement {
    const card = element('div', 'gpukernel-card');
    const title = element('div', 'gpukernel-card-title');
    title.append(
      element('span', '', other.description || 'A slice'),
      element('span', 'gpukernel-card-name', other.server)
    );
    const buttons = element('div', 'gpukernel-buttons');
    buttons.append(
      button('Release', () => {
        this._slices.endLease(other.lease_id).catch(error => {
          Notification.error((error as Error).message, { autoClose: 8000 });
        });
      })
    );
    card.append(title, ...this._use(other), buttons);
    return card;
  }

  private _use(use: ILeaseStatus): HTMLElement[] {
    const memory = use.memory_bytes ? use.used_bytes / use.memory_bytes : 0;
    const rows = [
      meter('memory', 'Memory', memory, `${size(use.used_bytes)} of ${size(use.memory_bytes)}`),
      meter('compute', 'Compute', use.gpu_share ?? 0, use.gpu_share === null ? '' : `${percent(use.gpu_share)} busy`)
    ];
    const held = `held ${duration(Date.now() / 1000 - use.created)}`;
    const left = use.until ? ` · ${duration(use.until - Date.now() / 1000)} left` : '';
    rows.push(element('div', 'gpukernel-small', `${use.device} · ${held}${left} · ${use.gpu_seconds.toFixed(1)} s of GPU time`));
    return rows;
  }

  private async _resize(kernel: IKernelStatus): Promise<void> {
    const wanted = await askForResize(kernel);
    if (wanted) {
      try {
        await this._slices.act(kernel.kernel_id, 'resize', { share: wanted.share });
      } catch (error) {
        await showErrorMessage('The slice stays as it is', (error as Error).message);
      }
    }
  }

  private _slices: Slices;
  private _nameOf: (kernel: string) => string;
  private _body: HTMLElement;
}

function element(tag: string, className = '', text = ''): HTMLElement {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  return node;
}

function button(text: string, act: () => void): HTMLButtonElement {
  const node = document.createElement('button');
  node.className = 'gpukernel-button';
  node.textContent = text;
  node.onclick = act;
  return node;
}

function meter(kind: string, name: string, part: number, text: string): HTMLElement {
  const row = element('div', 'gpukernel-meter');
  const bar = element('span', 'gpukernel-bar');
  const fill = element('span', `gpukernel-fill gpukernel-${kind}`);
  fill.style.width = `${Math.min(100, Math.round(part * 100))}%`;
  bar.append(fill);
  row.append(element('span', 'gpukernel-meter-name', name), bar, element('span', 'gpukernel-meter-text', text));
  return row;
}

function sentence(text: string): string {
  const whole = text.charAt(0).toUpperCase() + text.slice(1);
  return whole.endsWith('.') ? whole : `${whole}.`;
}
