// Numbers that are made of paths would differ from one checkout to the next; names are the same everywhere.
module.exports = { optimization: { moduleIds: 'named', chunkIds: 'named' } };
