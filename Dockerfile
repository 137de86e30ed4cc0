# Two stages, so that the image has no compiler and no development packages.
FROM node:22-bookworm-slim AS build
WORKDIR /app
COPY package.json package-lock.json .npmrc tsconfig.json tsconfig.build.json ./
RUN npm ci --ignore-scripts
COPY bin bin
COPY gateway gateway
COPY adapters adapters
COPY demo demo
RUN npm run build

FROM node:22-bookworm-slim
ENV NODE_ENV=production
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
# The image has no embedded PostgreSQL: set DATABASE_URL.
RUN npm ci --omit=dev --omit=optional --ignore-scripts && npm cache clean --force
COPY --from=build /app/dist dist
COPY bin bin
COPY migrations migrations
COPY console console
COPY policies policies
RUN mkdir -p .oncegate && chown node:node .oncegate
USER node
ENV HOST=0.0.0.0 PORT=8080 ONCEGATE_DEMO=0
EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=3s --start-period=20s CMD ["node", "-e", "fetch('http://127.0.0.1:'+process.env.PORT+'/readyz').then(r=>process.exit(r.ok?0:1),()=>process.exit(1))"]
CMD ["node", "bin/oncegate.js", "start"]
