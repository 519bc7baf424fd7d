// Notebook's menu “New”: a size of one's own stands behind the kernels, and the menu, whose words are longer with slices, stays inside
// the page.
import { JupyterFrontEnd } from '@jupyterlab/application';
import { IToolbarWidgetRegistry } from '@jupyterlab/apputils';
import { ISignal } from '@lumino/signaling';
import { Menu, MenuBar, Widget } from '@lumino/widgets';

const TOOLBAR = 'FileBrowser';
const ITEM = 'new-dropdown';
const KERNEL = 'notebook:create-new';

function addAfterKernels(menu: Menu, command: string): void {
  if (menu.items.every(item => item.command !== command)) {
    const kernels = menu.items.map(item => item.command).lastIndexOf(KERNEL);
    menu.insertItem(kernels + 1, { command });
  }
}

/** Add `command` behind the kernels of the menu, once the application has made it; nothing where it has none. */
export async function extendNewMenu(
  app: JupyterFrontEnd,
  toolbars: IToolbarWidgetRegistry,
  changed: ISignal<unknown, unknown>,
  command: string
): Promise<void> {
  await app.restored;
  const { kernelspecs } = app.serviceManager;
  const theirs = toolbars.addFactory(TOOLBAR, ITEM, () => new Widget()); // for a moment, to have the one before
  if (!theirs) {
    return;
  }
  toolbars.addFactory(TOOLBAR, ITEM, browser => {
    const bar = theirs(browser);
    if (!(bar instanceof MenuBar) || bar.menus.length !== 1) {
      return bar;
    }
    const [menu] = bar.menus;
    addAfterKernels(menu, command);
    kernelspecs.specsChanged.connect(() => addAfterKernels(menu, command)); // after the application has filled it anew
    const inside = new MenuBar({ forceItemsPosition: { forceX: false, forceY: true }, overflowMenuOptions: { isVisible: false } });
    inside.addMenu(menu);
    inside.addClass('jp-DropdownMenu');
    // What is free is another figure when a slice of this server came or went; a menu that is open would close.
    changed.connect(() => void (menu.isAttached || kernelspecs.refreshSpecs()));
    return inside;
  });
}
