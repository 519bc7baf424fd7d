"use strict";(self.rspackChunkgpukernel=self.rspackChunkgpukernel||[]).push([[232],{475(e,r,n){var t=n(601),o=n.n(t),a=n(314),i=(n.n(a))()(o());i.push([e.id,`.gpukernel-status {
  display: flex;
  align-items: center;
  gap: 6px;
  padding: 0 6px;
  cursor: pointer;
  white-space: nowrap;
  font-size: var(--jp-ui-font-size1);
  color: var(--jp-ui-font-color1);
}

.gpukernel-status:hover {
  background: var(--jp-layout-color3);
}

.gpukernel-status.lm-mod-hidden {
  display: none;
}

.gpukernel-status [hidden] {
  display: none;
}

.gpukernel-status[data-state='waiting'] {
  color: var(--jp-warn-color0);
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

.gpukernel-status-cancel {
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
  font-weight: 600;
}

.gpukernel-body {
  flex: 1;
  overflow-y: auto;
  padding: 8px;
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
.gpukernel-section,
.gpukernel-empty,
.gpukernel-words {
  margin: 4px 0;
  color: var(--jp-ui-font-color2);
  font-size: var(--jp-ui-font-size0);
  line-height: 1.5;
}

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

.gpukernel-buttons {
  display: flex;
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
`,""]),n.d(r,{},{A:i})},314(e){e.exports=function(e){var r=[];return r.toString=function(){return this.map(function(r){var n="",t=void 0!==r[5];return r[4]&&(n+="@supports (".concat(r[4],") {")),r[2]&&(n+="@media ".concat(r[2]," {")),t&&(n+="@layer".concat(r[5].length>0?" ".concat(r[5]):""," {")),n+=e(r),t&&(n+="}"),r[2]&&(n+="}"),r[4]&&(n+="}"),n}).join("")},r.i=function(e,n,t,o,a){"string"==typeof e&&(e=[[null,e,void 0]]);var i={};if(t)for(var p=0;p<this.length;p++){var l=this[p][0];null!=l&&(i[l]=!0)}for(var u=0;u<e.length;u++){var s=[].concat(e[u]);t&&i[s[0]]||(void 0!==a&&(void 0===s[5]||(s[1]="@layer".concat(s[5].length>0?" ".concat(s[5]):""," {").concat(s[1],"}")),s[5]=a),n&&(s[2]&&(s[1]="@media ".concat(s[2]," {").concat(s[1],"}")),s[2]=n),o&&(s[4]?(s[1]="@supports (".concat(s[4],") {").concat(s[1],"}"),s[4]=o):s[4]="".concat(o)),r.push(s))}},r}},601(e){e.exports=function(e){return e[1]}},72(e){var r=[];function n(e){for(var n=-1,t=0;t<r.length;t++)if(r[t].identifier===e){n=t;break}return n}function t(e,t){for(var o={},a=[],i=0;i<e.length;i++){var p=e[i],l=t.base?p[0]+t.base:p[0],u=o[l]||0,s="".concat(l," ").concat(u);o[l]=u+1;var c=n(s),d={css:p[1],media:p[2],sourceMap:p[3],supports:p[4],layer:p[5]};if(-1!==c)r[c].references++,r[c].updater(d);else{var g=function(e,r){var n=r.domAPI(r);return n.update(e),function(r){r?(r.css!==e.css||r.media!==e.media||r.sourceMap!==e.sourceMap||r.supports!==e.supports||r.layer!==e.layer)&&n.update(e=r):n.remove()}}(d,t);t.byIndex=i,r.splice(i,0,{identifier:s,updater:g,references:1})}a.push(s)}return a}e.exports=function(e,o){var a=t(e=e||[],o=o||{});return function(e){e=e||[];for(var i=0;i<a.length;i++){var p=n(a[i]);r[p].references--}for(var l=t(e,o),u=0;u<a.length;u++){var s=n(a[u]);0===r[s].references&&(r[s].updater(),r.splice(s,1))}a=l}}},659(e){var r={};e.exports=function(e,n){var t=function(e){if(void 0===r[e]){var n=document.querySelector(e);if(window.HTMLIFrameElement&&n instanceof window.HTMLIFrameElement)try{n=n.contentDocument.head}catch(e){n=null}r[e]=n}return r[e]}(e);if(!t)throw Error("Couldn't find a style target. This probably means that the value for the 'insert' parameter is invalid.");t.appendChild(n)}},540(e){e.exports=function(e){var r=document.createElement("style");return e.setAttributes(r,e.attributes),e.insert(r,e.options),r}},56(e,r,n){e.exports=function(e){var r=n.nc;r&&e.setAttribute("nonce",r)}},825(e){e.exports=function(e){if("u"<typeof document)return{update:function(){},remove:function(){}};var r=e.insertStyleElement(e);return{update:function(n){var t,o,a;t="",n.supports&&(t+="@supports (".concat(n.supports,") {")),n.media&&(t+="@media ".concat(n.media," {")),(o=void 0!==n.layer)&&(t+="@layer".concat(n.layer.length>0?" ".concat(n.layer):""," {")),t+=n.css,o&&(t+="}"),n.media&&(t+="}"),n.supports&&(t+="}"),(a=n.sourceMap)&&"u">typeof btoa&&(t+="\n/*# sourceMappingURL=data:application/json;base64,".concat(btoa(unescape(encodeURIComponent(JSON.stringify(a))))," */")),e.styleTagTransform(t,r,e.options)},remove:function(){var e;null===(e=r).parentNode||e.parentNode.removeChild(e)}}}},113(e){e.exports=function(e,r){if(r.styleSheet)r.styleSheet.cssText=e;else{for(;r.firstChild;)r.removeChild(r.firstChild);r.appendChild(document.createTextNode(e))}}},579(e,r,n){var t=n(72),o=n.n(t),a=n(825),i=n.n(a),p=n(659),l=n.n(p),u=n(56),s=n.n(u),c=n(540),d=n.n(c),g=n(113),f=n.n(g),v=n(475),m={};m.styleTagTransform=f(),m.setAttributes=s(),m.insert=l().bind(null,"head"),m.domAPI=i(),m.insertStyleElement=d(),o()(v.A,m),v.A&&v.A.locals&&v.A.locals}}]);