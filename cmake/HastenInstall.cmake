# To be filled by the packaging.
