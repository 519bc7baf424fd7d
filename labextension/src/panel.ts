// The side panel: this person's slices across notebooks, and elsewhere.
import { Widget } from '@lumino/widgets';
import { Actions, IAction, nextStep } from './actions';
import { ask } from './api';
import { chart } from './chart';
import { sliceIcon } from './icon';
import { IKernelStatus, ILeaseStatus, IOtherLease } from './kernel_status';
import { duration, hoursInWords, percent, size, Slices } from './model';
import { __, said, sentence, sentences } from './texts';

/** What a card shows: figures that change all the time, what to do, and buttons. */
interface ICard {
  key: string;
  state: string;
  title: string;
  name: string;
  figures: HTMLElement[];
  words: string;
  step: string;
  notice: string;
  actions: IAction[];
}

/** The answer to `hours`: of gpukernel/jupyter/hours.py. */
interface IHours {
  used: number;
  allowed: number;
  page: string;
}

const HOURS_INTERVAL = 180_000;

export class SlicesPanel extends Widget {
  /** `nameOf` says which notebook a kernel belongs to; `create` starts a kernel of one's own size. */
  constructor(slices: Slices, actions: Actions, nameOf: (kernel: string) => string, create: () => void) {
    super();
    this.id = 'gpukernel-panel';
    this.title.icon = sliceIcon;
    this.title.caption = __('GPU slices');
    this.addClass('gpukernel-panel');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', __('GPU slices'));
    this._slices = slices;
    this._actions = actions;
    this._nameOf = nameOf;
    const head = element('div', 'gpukernel-head');
    head.append(element('h2', 'gpukernel-title', __('GPU slices')), button({ label: __('Your own size…'), run: create }));
    this._body = element('div', 'gpukernel-body');
    this._hours = element('div', 'gpukernel-hours');
    this._hours.hidden = true;
    this.node.append(head, this._body, this._hours);
    slices.changed.connect(this._draw, this);
  }

  protected onAfterShow(): void {
    this._slices.watched = true;
    this._draw();
    void this._tellHours();
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
    const shown: HTMLElement[] = [];
    if (problem) {
      shown.push(element('div', 'gpukernel-problem', said(problem)));
    }
    shown.push(...kernels.map(kernel => this._card(this._kernel(kernel))));
    if (others.length) {
      shown.push(element('h3', 'gpukernel-section', __('Elsewhere')));
      shown.push(...others.map(other => this._card(this._other(other))));
    }
    if (!kernels.length && !others.length && !problem) {
      shown.push(
        element(
          'div',
          'gpukernel-empty',
          __('You hold no slice. Choose a kernel like “V100 × 0.02” in the launcher, or a size of your own.')
        )
      );
    }
    for (const [key, card] of this._cards) {
      if (!shown.includes(card)) {
        this._cards.delete(key);
      }
    }
    // Cards stay where they are, so that nobody's click or focus is lost to a figure that changes.
    shown.forEach((node, place) => {
      if (this._body.children[place] !== node) {
        this._body.insertBefore(node, this._body.children[place] ?? null);
      }
    });
    while (this._body.children.length > shown.length) {
      this._body.lastChild?.remove();
    }
  }

  /** One line with the hours of this week, asked for when the panel opens, at most once in some minutes. */
  private async _tellHours(): Promise<void> {
    if (Date.now() - this._askedHours < HOURS_INTERVAL) {
      return;
    }
    this._askedHours = Date.now();
    try {
      const { used, allowed, page } = await ask<IHours>('hours');
      const text = element('span', '', hoursInWords(used, allowed));
      const link = element('a', '', __('My GPU')) as HTMLAnchorElement;
      link.href = page;
      link.target = '_blank';
      link.rel = 'noopener';
      this._hours.replaceChildren(text, ...(page ? [link] : []));
      this._hours.hidden = false;
    } catch {
      this._hours.hidden = true; // the pool's problem stands above
    }
  }

  private _kernel(kernel: IKernelStatus): ICard {
    const live = kernel.state === 'live';
    let words = '';
    if (kernel.state === 'waiting') {
      const about = kernel.estimate_seconds >= 0 ? __(', about %1 to go', duration(kernel.estimate_seconds)) : '';
      const place = kernel.position ? __('Position %1 in the queue%2.', kernel.position, about) : __('Asking the pool …');
      const held = kernel.sentence ? sentence(said(kernel.sentence)) : '';
      words = sentences(place, held, __('The kernel runs; its first use of CUDA waits.'));
    } else if (!live) {
      words = sentence(said(kernel.sentence) || __('No slice now'));
    }
    return {
      key: kernel.kernel_id,
      state: kernel.state,
      title: kernel.what,
      name: this._nameOf(kernel.kernel_id),
      figures: live ? [...use(kernel), chart(this._slices.history(kernel.kernel_id), this._slices.status.time) as unknown as HTMLElement] : [],
      words,
      step: nextStep(kernel),
      notice: said(kernel.notice),
      actions: [
        ...(kernel.may_keep ? [{ label: __('Keep it'), run: () => void this._actions.keep(kernel.kernel_id) }] : []),
        ...this._actions.of(kernel)
      ]
    };
  }

  private _other(other: IOtherLease): ICard {
    return {
      key: other.lease_id,
      state: other.state,
      title: other.description || __('A slice'),
      name: other.server,
      figures: use(other),
      words: '',
      step: '',
      notice: said(other.notice),
      actions: [{ label: __('Release…'), run: () => this._actions.releaseOther(other) }]
    };
  }

  /** The element of a card: the one that stands already, of which only what is different is made anew. */
  private _card(card: ICard): HTMLElement {
    let node = this._cards.get(card.key);
    if (!node) {
      node = element('section', 'gpukernel-card');
      node.append(
        element('div', 'gpukernel-card-title'),
        element('div', 'gpukernel-figures'),
        element('div', 'gpukernel-words'),
        element('div', 'gpukernel-step'),
        element('div', 'gpukernel-notice'),
        element('div', 'gpukernel-buttons')
      );
      node.children[3].setAttribute('role', 'status');
      this._cards.set(card.key, node);
    }
    const [title, figures, words, step, notice, buttons] = Array.from(node.children) as HTMLElement[];
    node.dataset.state = card.state;
    node.setAttribute('aria-label', card.name ? `${card.title}, ${card.name}` : card.title);
    title.replaceChildren(element('span', '', card.title), element('span', 'gpukernel-card-name', card.name));
    (title.lastChild as HTMLElement).title = card.name;
    figures.replaceChildren(...card.figures);
    for (const [place, text] of [[words, card.words], [step, card.step], [notice, card.notice]] as const) {
      if (place.textContent !== text) {
        place.textContent = text;
      }
      place.hidden = !text;
    }
    const labels = card.actions.map(action => action.label).join('\n');
    if (buttons.dataset.labels !== labels) {
      const focused = buttons.contains(document.activeElement);
      buttons.dataset.labels = labels;
      buttons.replaceChildren(...card.actions.map(action => button(action)));
      if (focused) {
        (buttons.firstChild as HTMLElement | null)?.focus();
      }
    } else {
      card.actions.forEach((action, place) => ((buttons.children[place] as HTMLButtonElement).onclick = action.run));
    }
    return node;
  }

  private _slices: Slices;
  private _actions: Actions;
  private _nameOf: (kernel: string) => string;
  private _body: HTMLElement;
  private _hours: HTMLElement;
  private _askedHours = 0;
  private _cards = new Map<string, HTMLElement>();
}

function use(lease: ILeaseStatus): HTMLElement[] {
  const memory = lease.memory_bytes ? lease.used_bytes / lease.memory_bytes : 0;
  const busy = lease.gpu_share === null ? '' : __('%1 busy', percent(lease.gpu_share));
  const held = __('held %1', duration(Date.now() / 1000 - lease.created));
  const left = lease.until ? __(' · %1 left', duration(lease.until - Date.now() / 1000)) : '';
  const time = __(' · %1 s of GPU time', lease.gpu_seconds.toFixed(1));
  return [
    meter('memory', __('Memory'), memory, __('%1 of %2', size(lease.used_bytes), size(lease.memory_bytes))),
    ...(busy ? [meter('compute', __('Compute'), lease.gpu_share ?? 0, busy)] : []),
    element('div', 'gpukernel-small', `${lease.device} · ${held}${left}${time}`)
  ];
}

function element(tag: string, className = '', text = ''): HTMLElement {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  return node;
}

function button(action: IAction): HTMLButtonElement {
  const node = document.createElement('button');
  node.className = 'gpukernel-button';
  node.textContent = action.label;
  node.onclick = action.run;
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
