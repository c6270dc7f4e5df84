"""What the doors are, for machines and people: OpenAPI and AsyncAPI, which the page shows too."""
