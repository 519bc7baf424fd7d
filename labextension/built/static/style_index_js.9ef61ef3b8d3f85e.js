"use strict";(self.rspackChunkgpukernel=self.rspackChunkgpukernel||[]).push([["style_index_js"],{"./node_modules/css-loader/dist/cjs.js!./style/base.css"(e,r,t){var n=t("./node_modules/css-loader/dist/runtime/noSourceMaps.js"),o=t.n(n),a=t("./node_modules/css-loader/dist/runtime/api.js"),s=(t.n(a))()(o());s.push([e.id,`.gpukernel-status {
  display: flex;
  align-items: center;
  gap: 6px;
  white-space: nowrap;
  font-size: var(--jp-ui-font-size1);
  color: var(--jp-ui-font-color1);
}

.gpukernel-status.lm-mod-hidden {
  display: none;
}

.gpukernel-status [hidden],
.gpukernel-panel [hidden] {
  display: none;
}

.gpukernel-status-show {
  display: flex;
  align-items: center;
  gap: 6px;
  height: 100%;
  padding: 0 6px;
  border: none;
  background: transparent;
  color: inherit;
  font: inherit;
  cursor: pointer;
}

.gpukernel-status-show:hover {
  background: var(--jp-layout-color1);
}

.gpukernel-status[data-state='waiting'] .gpukernel-status-show,
.gpukernel-status[data-state='trouble'] .gpukernel-status-show {
  border-left: 3px solid var(--jp-warn-color1);
}

.gpukernel-status-bar,
.gpukernel-bar {
  display: inline-block;
  overflow: hidden;
  background: var(--jp-layout-color3);
  border-radius: 3px;
}

.gpukernel-status-bar {
  width: 60px;
  height: 8px;
}

.gpukernel-status-fill,
.gpukernel-fill {
  display: block;
  height: 100%;
  background: #1e9e5a;
}

.gpukernel-status-act {
  padding: 0 6px;
  border: 1px solid var(--jp-border-color1);
  border-radius: 3px;
  background: transparent;
  color: inherit;
  font-size: var(--jp-ui-font-size0);
  cursor: pointer;
}

.gpukernel-panel {
  display: flex;
  flex-direction: column;
  min-width: 240px;
  background: var(--jp-layout-color1);
  color: var(--jp-ui-font-color1);
  font-size: var(--jp-ui-font-size1);
}

.gpukernel-head {
  display: flex;
  align-items: center;
  justify-content: space-between;
  padding: 8px 12px;
  border-bottom: 1px solid var(--jp-border-color2);
}

.gpukernel-title {
  margin: 0;
  font-size: inherit;
  font-weight: 600;
}

.gpukernel-body {
  flex: 1;
  overflow-y: auto;
  padding: 8px;
}

.gpukernel-hours {
  display: flex;
  flex-wrap: wrap;
  justify-content: space-between;
  gap: 4px 12px;
  padding: 8px 12px;
  border-top: 1px solid var(--jp-border-color2);
  font-size: var(--jp-ui-font-size0);
}

.gpukernel-hours a {
  color: var(--jp-content-link-color);
  text-decoration: underline;
}

.gpukernel-card {
  margin-bottom: 8px;
  padding: 10px;
  border: 1px solid var(--jp-border-color2);
  border-radius: 4px;
}

.gpukernel-card[data-state='waiting'] {
  border-left: 3px solid var(--jp-warn-color1);
}

.gpukernel-card[data-state='ended'] {
  border-left: 3px solid var(--jp-error-color1);
}

.gpukernel-card[data-state='live'] {
  border-left: 3px solid #1e9e5a;
}

.gpukernel-card-title {
  display: flex;
  justify-content: space-between;
  gap: 8px;
  margin-bottom: 6px;
  font-weight: 600;
}

.gpukernel-card-name {
  overflow: hidden;
  color: var(--jp-ui-font-color2);
  font-weight: normal;
  text-overflow: ellipsis;
  white-space: nowrap;
}

.gpukernel-meter {
  display: grid;
  grid-template-columns: 62px 1fr;
  align-items: center;
  column-gap: 8px;
  margin: 3px 0;
}

.gpukernel-meter-text {
  grid-column: 2;
  color: var(--jp-ui-font-color2);
  font-size: var(--jp-ui-font-size0);
}

.gpukernel-bar {
  height: 8px;
}

.gpukernel-fill.gpukernel-compute {
  background: #d9822b;
}

.gpukernel-small,
.gpukernel-empty,
.gpukernel-words {
  margin: 4px 0;
  color: var(--jp-ui-font-color2);
  font-size: var(--jp-ui-font-size0);
  line-height: 1.5;
}

.gpukernel-section {
  margin: 12px 0 6px;
  font-size: var(--jp-ui-font-size1);
  font-weight: 600;
}

.gpukernel-step,
.gpukernel-problem,
.gpukernel-notice {
  margin: 4px 0 8px;
  padding: 6px 8px;
  border-left: 3px solid var(--jp-warn-color1);
  background: var(--jp-layout-color2);
  font-size: var(--jp-ui-font-size0);
}

.gpukernel-chart {
  width: 100%;
  height: 48px;
  margin: 6px 0;
  border-radius: 3px;
  background: var(--jp-layout-color2);
}

.gpukernel-chart polyline {
  fill: none;
  stroke-width: 1.5;
  vector-effect: non-scaling-stroke;
}

.gpukernel-chart .gpukernel-memory {
  stroke: #1e9e5a;
}

.gpukernel-chart .gpukernel-compute {
  stroke: #d9822b;
}

.gpukernel-question {
  max-width: 420px;
  line-height: 1.5;
}

.gpukernel-question p {
  margin: 0 0 8px;
}

.gpukernel-buttons {
  display: flex;
  flex-wrap: wrap;
  gap: 6px;
  justify-content: flex-end;
}

.gpukernel-button {
  padding: 3px 10px;
  border: 1px solid var(--jp-border-color1);
  border-radius: 3px;
  background: var(--jp-layout-color1);
  color: var(--jp-ui-font-color1);
  font-size: var(--jp-ui-font-size0);
  cursor: pointer;
}

.gpukernel-button:hover {
  background: var(--jp-layout-color2);
}

.gpukernel-size {
  display: flex;
  flex-direction: column;
  gap: 10px;
  min-width: 300px;
}

.gpukernel-size label {
  display: grid;
  grid-template-columns: 60px 1fr;
  align-items: center;
}

.gpukernel-size .jp-select-wrapper {
  margin-bottom: 0;
}

.gpukernel-size-words {
  min-height: 1.4em;
  color: var(--jp-ui-font-color2);
}

.gpukernel-size input[type='range'] {
  width: 100%;
  margin: 0;
  padding: 0;
  border: none;
  background: transparent;
  appearance: auto;
  accent-color: #1e9e5a;
}

.gpukernel-size select,
.gpukernel-size input[type='number'] {
  box-sizing: border-box;
  width: 100%;
  height: 30px;
  margin: 0;
  font-size: var(--jp-ui-font-size1);
}
`,""]),t.d(r,{},{A:s})},"./node_modules/css-loader/dist/runtime/api.js"(e){e.exports=function(e){var r=[];return r.toString=function(){return this.map(function(r){var t="",n=void 0!==r[5];return r[4]&&(t+="@supports (".concat(r[4],") {")),r[2]&&(t+="@media ".concat(r[2]," {")),n&&(t+="@layer".concat(r[5].length>0?" ".concat(r[5]):""," {")),t+=e(r),n&&(t+="}"),r[2]&&(t+="}"),r[4]&&(t+="}"),t}).join("")},r.i=function(e,t,n,o,a){"string"==typeof e&&(e=[[null,e,void 0]]);var s={};if(n)for(var i=0;i<this.length;i++){var l=this[i][0];null!=l&&(s[l]=!0)}for(var p=0;p<e.length;p++){var u=[].concat(e[p]);n&&s[u[0]]||(void 0!==a&&(void 0===u[5]||(u[1]="@layer".concat(u[5].length>0?" ".concat(u[5]):""," {").concat(u[1],"}")),u[5]=a),t&&(u[2]&&(u[1]="@media ".concat(u[2]," {").concat(u[1],"}")),u[2]=t),o&&(u[4]?(u[1]="@supports (".concat(u[4],") {").concat(u[1],"}"),u[4]=o):u[4]="".concat(o)),r.push(u))}},r}},"./node_modules/css-loader/dist/runtime/noSourceMaps.js"(e){e.exports=function(e){return e[1]}},"./node_modules/style-loader/dist/runtime/injectStylesIntoStyleTag.js"(e){var r=[];function t(e){for(var t=-1,n=0;n<r.length;n++)if(r[n].identifier===e){t=n;break}return t}function n(e,n){for(var o={},a=[],s=0;s<e.length;s++){var i=e[s],l=n.base?i[0]+n.base:i[0],p=o[l]||0,u="".concat(l," ").concat(p);o[l]=p+1;var d=t(u),c={css:i[1],media:i[2],sourceMap:i[3],supports:i[4],layer:i[5]};if(-1!==d)r[d].references++,r[d].updater(c);else{var g=function(e,r){var t=r.domAPI(r);return t.update(e),function(r){r?(r.css!==e.css||r.media!==e.media||r.sourceMap!==e.sourceMap||r.supports!==e.supports||r.layer!==e.layer)&&t.update(e=r):t.remove()}}(c,n);n.byIndex=s,r.splice(s,0,{identifier:u,updater:g,references:1})}a.push(u)}return a}e.exports=function(e,o){var a=n(e=e||[],o=o||{});return function(e){e=e||[];for(var s=0;s<a.length;s++){var i=t(a[s]);r[i].references--}for(var l=n(e,o),p=0;p<a.length;p++){var u=t(a[p]);0===r[u].references&&(r[u].updater(),r.splice(u,1))}a=l}}},"./node_modules/style-loader/dist/runtime/insertBySelector.js"(e){var r={};e.exports=function(e,t){var n=function(e){if(void 0===r[e]){var t=document.querySelector(e);if(window.HTMLIFrameElement&&t instanceof window.HTMLIFrameElement)try{t=t.contentDocument.head}catch(e){t=null}r[e]=t}return r[e]}(e);if(!n)throw Error("Couldn't find a style target. This probably means that the value for the 'insert' parameter is invalid.");n.appendChild(t)}},"./node_modules/style-loader/dist/runtime/insertStyleElement.js"(e){e.exports=function(e){var r=document.createElement("style");return e.setAttributes(r,e.attributes),e.insert(r,e.options),r}},"./node_modules/style-loader/dist/runtime/setAttributesWithoutAttributes.js"(e,r,t){e.exports=function(e){var r=t.nc;r&&e.setAttribute("nonce",r)}},"./node_modules/style-loader/dist/runtime/styleDomAPI.js"(e){e.exports=function(e){if("u"<typeof document)return{update:function(){},remove:function(){}};var r=e.insertStyleElement(e);return{update:function(t){var n,o,a;n="",t.supports&&(n+="@supports (".concat(t.supports,") {")),t.media&&(n+="@media ".concat(t.media," {")),(o=void 0!==t.layer)&&(n+="@layer".concat(t.layer.length>0?" ".concat(t.layer):""," {")),n+=t.css,o&&(n+="}"),t.media&&(n+="}"),t.supports&&(n+="}"),(a=t.sourceMap)&&"u">typeof btoa&&(n+="\n/*# sourceMappingURL=data:application/json;base64,".concat(btoa(unescape(encodeURIComponent(JSON.stringify(a))))," */")),e.styleTagTransform(n,r,e.options)},remove:function(){var e;null===(e=r).parentNode||e.parentNode.removeChild(e)}}}},"./node_modules/style-loader/dist/runtime/styleTagTransform.js"(e){e.exports=function(e,r){if(r.styleSheet)r.styleSheet.cssText=e;else{for(;r.firstChild;)r.removeChild(r.firstChild);r.appendChild(document.createTextNode(e))}}},"./style/index.js"(e,r,t){var n=t("./node_modules/style-loader/dist/runtime/injectStylesIntoStyleTag.js"),o=t.n(n),a=t("./node_modules/style-loader/dist/runtime/styleDomAPI.js"),s=t.n(a),i=t("./node_modules/style-loader/dist/runtime/insertBySelector.js"),l=t.n(i),p=t("./node_modules/style-loader/dist/runtime/setAttributesWithoutAttributes.js"),u=t.n(p),d=t("./node_modules/style-loader/dist/runtime/insertStyleElement.js"),c=t.n(d),g=t("./node_modules/style-loader/dist/runtime/styleTagTransform.js"),f=t.n(g),m=t("./node_modules/css-loader/dist/cjs.js!./style/base.css"),h={};h.styleTagTransform=f(),h.setAttributes=u(),h.insert=l().bind(null,"head"),h.domAPI=s(),h.insertStyleElement=c(),o()(m.A,h),m.A&&m.A.locals&&m.A.locals}}]);